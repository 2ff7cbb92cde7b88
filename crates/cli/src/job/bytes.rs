//! Amounts of memory as text: `"2 GiB"` to bytes and back.

/// The units, the largest first within each family: powers of 1000, then powers of 1024.
const UNITS: [(&str, u64); 9] = [
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// What to write instead of a size that cannot be read.
const WRITE: &str =
    r#"write a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, such as "2 GiB" or "1500 MB""#;

/// Reads a size such as `"2 GiB"`, `"1.5MB"` or `"4096"` (bytes).
///
/// KB, MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB are powers of 1024; case does not
/// matter. The size must be a whole number of bytes, so `"0.3 KiB"` is refused.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Integers only: a detour over f64 would round sizes above 2^53.
    let fraction = fraction.trim_end_matches('0');
    let Ok(digits) = format!("{whole}{fraction}").parse::<u128>() else {
        return Err(if number.bytes().all(|b| b.is_ascii_digit()) && !number.is_empty() {
            "is more than 2^64 - 1 bytes: write less".to_owned()
        } else {
            format!("does not start with a non-negative number: {WRITE}")
        });
    };
    let unit = unit.trim();
    let unit_bytes = match unit {
        "" => 1,
        _ => match UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
            Some((_, bytes)) => *bytes,
            None => return Err(format!("has no known unit: {WRITE}")),
        },
    };
    let places = u32::try_from(fraction.len()).unwrap_or(u32::MAX);
    let too_much = || "is more than 2^64 - 1 bytes: write less".to_owned();
    let scaled = digits.checked_mul(u128::from(unit_bytes)).ok_or_else(too_much)?;
    match 10u128.checked_pow(places) {
        Some(divisor) if scaled % divisor == 0 => u64::try_from(scaled / divisor).map_err(|_| too_much()),
        _ => Err("is not a whole number of bytes: write fewer decimals, or a smaller unit".to_owned()),
    }
}

/// Shows an amount for people to read, rounded: `"1.50 GiB"`, `"812.0 MiB"`, `"96 B"`.
pub fn show_bytes(bytes: u64) -> String {
    const STEPS: [(&str, u64, usize); 4] =
        [("KiB", 1 << 10, 1), ("MiB", 1 << 20, 1), ("GiB", 1 << 30, 2), ("TiB", 1 << 40, 2)];
    if bytes < 1 << 10 {
        return format!("{bytes} B");
    }
    let mut shown = String::new();
    for (unit, size, places) in STEPS {
        let amount = format!("{:.places$}", bytes as f64 / size as f64);
        // Compared after rounding, lest 1 GiB - 1 B be shown as "1024.0 MiB".
        let fits = amount.parse::<f64>().is_ok_and(|rounded| rounded < 1024.0);
        shown = format!("{amount} {unit}");
        if fits {
            break;
        }
    }
    shown
}

/// Writes an amount without loss, in the largest unit that divides it: `"1500 MB"`, `"2 GiB"`,
/// `"1234567 B"`. [`parse_bytes`] reads it back to the same number.
pub fn exact_bytes(bytes: u64) -> String {
    let (unit, size) = UNITS
        .into_iter()
        .filter(|(_, size)| bytes != 0 && bytes.is_multiple_of(*size))
        .max_by_key(|(_, size)| *size)
        .unwrap_or(("B", 1));
    format!("{} {unit}", bytes / size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_every_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("96 B", 96),
            ("2 GiB", 2 << 30),
            ("1500MB", 1_500_000_000),
            ("512 kib", 512 << 10),
            (" 1.5 GiB ", 3 << 29),
            ("1.50 TB", 1_500_000_000_000),
            (".5 KB", 500),
            ("2 tib", 2 << 40),
            ("18446744073709551615 B", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_an_exact_size() {
        for (text, start) in [
            ("", "does not start with a non-negative number: write a number and one of B, KB, MB"),
            (".", "does not start"),
            ("-1 GiB", "does not start"),
            ("1.2.3 GiB", "does not start"),
            ("GiB", "does not start"),
            ("2 GiBB", "has no known unit: write a number"),
            ("1e3 B", "has no known unit"),
            ("1.3 KiB", "is not a whole number of bytes"),
            ("0.5 B", "is not a whole number of bytes"),
            ("18446744073709551616", "is more than 2^64 - 1 bytes"),
            ("16777216 TiB", "is more than 2^64 - 1 bytes"),
            ("999999999999999999999999999999999999999999 B", "is more than 2^64 - 1 bytes"),
            ("340282366920938463463374607431768211455 TB", "is more than 2^64 - 1 bytes"),
        ] {
            let message = parse_bytes(text).unwrap_err();
            assert!(message.starts_with(start), "{text}: {message}");
        }
    }

    #[test]
    fn shows_rounded_amounts() {
        for (bytes, text) in [
            (0, "0 B"),
            (96, "96 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (812 << 20, "812.0 MiB"),
            (3 << 29, "1.50 GiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (u64::MAX, "16777216.00 TiB"),
        ] {
            assert_eq!(show_bytes(bytes), text);
        }
    }

    #[test]
    fn writes_exact_amounts() {
        for (bytes, text) in
            [(0, "0 B"), (2 << 30, "2 GiB"), (1_500_000_000, "1500 MB"), (1_234_567, "1234567 B")]
        {
            assert_eq!(exact_bytes(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn exact_amounts_read_back(bytes: u64, shift in 0u32..64) {
            let bytes = bytes >> shift;
            prop_assert_eq!(parse_bytes(&exact_bytes(bytes)), Ok(bytes));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-+0-9. a-zA-Z\u{e9}]{0,60}") {
            let _ = parse_bytes(&text);
        }
    }
}
