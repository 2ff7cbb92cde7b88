//! The machine's profile: what is saved, and what a run makes of it.

mod common;

use common::Place;
use serde_json::Value;

/// The line of a run that says what MFU refers to, and what it complained of.
fn reference(place: &Place, run: &str) -> (String, String) {
    let dir = format!("run.dir=run-{run}");
    let out = place.memwall(&["train", "job.toml", "--set", &dir, "--set", "run.threads=1"]);
    let (text, complaints) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{complaints}");
    let line = text.lines().find(|l| l.starts_with("machine ")).unwrap().to_owned();
    let complaints = complaints.lines().filter(|l| l.contains("profile")).collect::<Vec<_>>().join("\n");
    (line, complaints)
}

fn saved(place: &Place) -> Value {
    place.json("cache/memwall/profile.json")
}

fn save(place: &Place, profile: &Value) {
    place.write("cache/memwall/profile.json", &profile.to_string());
}

#[test]
fn mfu_refers_to_the_saved_profile_and_to_a_quick_measurement_without_one() {
    let place = Place::new();
    let (line, complaints) = reference(&place, "before");
    assert!(line.contains("measured just now; memwall profile"), "{line}");
    assert_eq!(complaints, "");

    let table = place.ok(&["profile", "--quick"]);
    let mut profile = saved(&place);
    assert!(table.contains(profile["machine"]["cpu"].as_str().unwrap()), "{table}");
    // A rate that no measurement gives: it can only come from the file.
    let row = profile["matmul"].as_array_mut().unwrap().iter_mut().find(|r| r["threads"] == 1).unwrap();
    row["flops_per_second"] = 7.77e18.into();
    save(&place, &profile);
    let (line, complaints) = reference(&place, "after");
    let date = profile["date"].as_str().unwrap();
    assert!(
        line.contains("7770000.00 T") && line.contains(&format!("this machine's quick profile of {date}")),
        "{line}"
    );
    assert_eq!(complaints, "");
    let summary = place.json("run-after/summary.json");
    assert_eq!(summary["gemm_peak_flops"], 7.77e18);
    assert!(summary["gemm_peak_source"].as_str().unwrap().contains(date));
    assert!(summary["median_mfu"].as_f64().unwrap() < 1e-6, "MFU does not refer to the profile's rate");
}

#[test]
fn a_profile_that_does_not_fit_is_ignored_with_one_line() {
    let place = Place::new();
    place.ok(&["profile", "--quick"]);
    let profile = saved(&place);
    let mut foreign = profile.clone();
    foreign["machine"]["cpu"] = "another".into();
    let mut threads = profile.clone();
    threads["matmul"] = Value::Array(vec![]);
    for (bad, why) in
        [(foreign, "another machine"), (threads, "no rate for 1 thread"), (Value::from("x"), "damaged")]
    {
        save(&place, &bad);
        let (line, complaints) = reference(&place, why.split(' ').next().unwrap());
        assert!(line.contains("measured just now"), "{line}");
        assert_eq!(complaints.lines().count(), 1, "{complaints}");
        assert!(complaints.contains(why) && complaints.contains("is not used"), "{complaints}");
    }
}

#[test]
fn a_profile_has_every_figure_and_goes_where_it_is_told() {
    let place = Place::new();
    let text = place.ok(&["profile", "--quick", "--json", "--output", "here/p.json"]);
    let printed: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(printed, place.json("here/p.json"));
    assert!(!place.path("cache/memwall/profile.json").exists());
    let positive = |rows: &Value, key: &str| {
        let rows = rows.as_array().unwrap();
        assert!(rows.iter().all(|r| r[key].as_f64().unwrap() > 0.0), "{rows:?}");
        rows.len()
    };
    let counts = printed["multiply_adds"].as_array().unwrap().len();
    assert!((1..=2).contains(&counts), "one thread, and all where there are more");
    positive(&printed["multiply_adds"], "flops_per_second");
    // Ways through memory; types times layouts times sizes.
    assert_eq!(positive(&printed["memory"], "bytes_per_second"), 3 * counts);
    assert_eq!(positive(&printed["matmul"], "flops_per_second"), 2 * 3 * 3 * counts);
    for row in printed["multiply_adds"].as_array().unwrap() {
        let peak = row["flops_per_second"].as_f64().unwrap();
        for product in printed["matmul"].as_array().unwrap().iter().filter(|p| p["threads"] == row["threads"])
        {
            // A machine that others use too gives no rate exactly; a wrong count of FLOPs is off by more.
            assert!(product["flops_per_second"].as_f64().unwrap() < 3.0 * peak, "{product} over {peak}");
        }
    }
}
