//! Mutations of texts: numbers, values, groups in brackets, lines.

use crate::random::Random;
use std::ops::Range;

/// Values that parsers and checks stumble over.
const VALUES: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "16",
    "17",
    "255",
    "256",
    "1024",
    "65535",
    "65536",
    "16777216",
    "16777217",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "1152921504606846976",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "0.1",
    "-0.0",
    "1e10",
    "1e308",
    "1e400",
    "1e-400",
    "1.5",
    "00",
    "0x10",
    "nan",
    "inf",
    "null",
    "true",
    "false",
    "\"\"",
    "\"a\"",
    "[]",
    "{}",
    "[[]]",
    "[1,2]",
    "{\"a\":1}",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\u{feff}\"",
    "\"..\"",
    "\"/\"",
];

/// How often values are nested or repeated.
const MANY: &[usize] = &[2, 3, 8, 17, 64, 127, 128, 129, 500, 4000];

/// Changes a text in one place.
pub(crate) fn mutate(text: &mut Vec<u8>, others: &[Vec<u8>], words: &[&str], random: &mut Random) {
    match random.below(12) {
        0 | 1 => {
            if let Some(place) = number(text, random) {
                let value = near(&text[place.clone()], random);
                text.splice(place, value);
            }
        }
        2..=4 => {
            if let Some(place) = value(text, random) {
                let new = some_value(text, others, words, random);
                text.splice(place, new);
            }
        }
        5 => {
            let at = random.below(text.len() + 1);
            text.splice(at..at, random.choose(words).bytes());
        }
        6 => {
            if let Some(place) = value(text, random) {
                let n = *random.choose(MANY);
                let (open, close) = *random.choose(&[("[", "]"), ("{\"a\":", "}"), ("{a=", "}")]);
                text.splice(place.end..place.end, close.repeat(n).bytes());
                text.splice(place.start..place.start, open.repeat(n).bytes());
            }
        }
        7 | 8 => {
            if let Some(place) = group(text, random) {
                let part = text[place.clone()].to_vec();
                match random.below(4) {
                    0 => drop(text.drain(place)),
                    1 => drop(text.splice(place.end..place.end, [b",".to_vec(), part].concat())),
                    2 => drop(text.splice(place.end..place.end, part.repeat(*random.choose(MANY)))),
                    _ => {
                        let at = random.below(text.len() + 1);
                        text.splice(at..at, part);
                    }
                }
            }
        }
        9 => {
            // From a separator to the next: a key with its value, mostly.
            let place = between(text, b",{}[]\n", random);
            let part = text[place.clone()].to_vec();
            match random.below(3) {
                0 => drop(text.drain(place)),
                1 => drop(text.splice(place.end..place.end, [b",".to_vec(), part].concat())),
                _ => {
                    let other = between(text, b",{}[]\n", random);
                    text.splice(other, part);
                }
            }
        }
        _ => {
            let place = between(text, b"\n", random);
            let part = text[place.clone()].to_vec();
            match random.below(3) {
                0 => drop(text.drain(place)),
                1 => {
                    let n = if random.one_in(8) { *random.choose(MANY) } else { 1 };
                    text.splice(place.end..place.end, [b"\n".to_vec(), part].concat().repeat(n));
                }
                _ => {
                    let other = between(text, b"\n", random);
                    text.splice(other, part);
                }
            }
        }
    }
}

/// A value to put in another's place.
fn some_value(text: &[u8], others: &[Vec<u8>], words: &[&str], random: &mut Random) -> Vec<u8> {
    match random.below(5) {
        0 => random.choose(words).as_bytes().to_vec(),
        1 => value(text, random).map_or_else(Vec::new, |place| text[place].to_vec()),
        2 => {
            let other = random.choose(others);
            value(other, random).map_or_else(Vec::new, |place| other[place].to_vec())
        }
        _ => random.choose(VALUES).as_bytes().to_vec(),
    }
}

/// A number near another, or one that is known for trouble.
fn near(old: &[u8], random: &mut Random) -> Vec<u8> {
    let old = std::str::from_utf8(old).ok().and_then(|t| t.parse::<i128>().ok());
    match old.filter(|_| random.one_in(2)) {
        Some(n) => match random.below(5) {
            0 => (n + 1).to_string(),
            1 => (n - 1).to_string(),
            2 => n.wrapping_mul(2).to_string(),
            3 => (n / 2).to_string(),
            _ => n.wrapping_neg().to_string(),
        }
        .into_bytes(),
        None => random.choose(VALUES).as_bytes().to_vec(),
    }
}

/// A run of digits with what belongs to it, at or after a random place.
fn number(text: &[u8], random: &mut Random) -> Option<Range<usize>> {
    let from = random.below(text.len());
    let start = from + text.get(from..)?.iter().position(u8::is_ascii_digit)?;
    let len = text[start..].iter().position(|b| !matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    Some(start..len.map_or(text.len(), |n| start + n))
}

/// A string, number or word, at or after a random place.
fn value(text: &[u8], random: &mut Random) -> Option<Range<usize>> {
    let from = random.below(text.len());
    let start = from + text.get(from..)?.iter().position(|b| b.is_ascii_alphanumeric() || *b == b'"')?;
    let rest = &text[start + 1..];
    let end = if text[start] == b'"' {
        rest.iter().position(|b| *b == b'"').map(|n| n + 1)
    } else {
        rest.iter().position(|b| !(b.is_ascii_alphanumeric() || b"._-+".contains(b)))
    };
    Some(start..end.map_or(text.len(), |n| start + 1 + n))
}

/// A group with its brackets, at or after a random place.
fn group(text: &[u8], random: &mut Random) -> Option<Range<usize>> {
    let from = random.below(text.len());
    let start = from + text.get(from..)?.iter().position(|b| matches!(b, b'{' | b'['))?;
    let mut depth = 0usize;
    for (i, b) in text[start..].iter().enumerate() {
        match b {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return Some(start..start + i + 1);
        }
    }
    None
}

/// What lies between two separators, around a random place.
fn between(text: &[u8], separators: &[u8], random: &mut Random) -> Range<usize> {
    let at = random.below(text.len());
    let start = text[..at].iter().rposition(|b| separators.contains(b)).map_or(0, |n| n + 1);
    let end = text[at..].iter().position(|b| separators.contains(b)).map_or(text.len(), |n| at + n);
    start.min(end)..end
}
