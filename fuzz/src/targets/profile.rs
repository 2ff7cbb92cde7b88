//! A machine's saved profile: read, and written out again.

use super::{Definition, Outcome, Target};
use crate::mutate::Form;
use memwall_cli::profile::Profile;
use std::path::Path;

pub(super) const DEFINITION: Definition = Definition {
    name: "profile",
    form: Form::Text,
    words: &[
        "\"format\"",
        "\"program\"",
        "\"date\"",
        "\"quick\"",
        "\"machine\"",
        "\"cpu\"",
        "\"cores\"",
        "\"caches\"",
        "\"instructions\"",
        "\"multiply_adds\"",
        "\"memory\"",
        "\"matmul\"",
        "\"threads\"",
        "\"kind\"",
        "\"bytes_per_second\"",
        "\"flops_per_second\"",
        "\"operands\"",
        "\"layout\"",
        "\"m\"",
        "true",
        "null",
        "1e308",
        "1e400",
        "-1",
        "1.5",
        "18446744073709551616",
        "[",
        "]",
        "{",
        "}",
    ],
    inputs: Vec::new,
    target: |_: &Path| Box::new(Saved),
    for_tests: false,
};

struct Saved;

impl Target for Saved {
    fn run(&mut self, input: &[u8]) -> Outcome {
        let Ok(text) = std::str::from_utf8(input) else { return Outcome::Refused("not UTF-8".into()) };
        let profile = match Profile::from_text(text) {
            Ok(profile) => profile,
            Err(e) => return Outcome::Refused(e),
        };
        let rates = |p: &Profile| p.matmul.iter().map(|row| row.flops_per_second).collect::<Vec<_>>();
        assert!(rates(&profile).iter().all(|rate| rate.is_finite()), "JSON has no other numbers");
        let again =
            Profile::from_text(&profile.to_text()).unwrap_or_else(|e| panic!("written, it is refused: {e}"));
        // The last digit of a number may go astray.
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * a.abs();
        assert!(rates(&profile).iter().zip(&rates(&again)).all(near), "written, it has other rates");
        assert_eq!(again.machine, profile.machine, "written, it is of another machine");
        Outcome::Accepted
    }
}
