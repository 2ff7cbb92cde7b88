//! Figures for people: counts of things, and medians.

/// "1 sequence", "2 sequences".
pub fn counted(n: usize, what: &str) -> String {
    let plural = if what.ends_with("ch") { "es" } else { "s" };
    format!("{n} {what}{}", if n == 1 { "" } else { plural })
}

/// The middle of the values, between the two middle ones where their number is even; `None` of none.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| (values[(n - 1) / 2] + values[n / 2]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        assert_eq!(counted(1, "thread"), "1 thread");
        assert_eq!(counted(0, "thread"), "0 threads");
        assert_eq!(counted(2, "micro-batch"), "2 micro-batches");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(vec![3.0, 1.0]), Some(2.0));
        assert_eq!(median(vec![3.0, 1.0, 9.0]), Some(3.0));
        assert_eq!(median(vec![]), None);
    }
}
