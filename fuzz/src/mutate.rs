//! Mutations of inputs, by the form that they have.

use crate::random::Random;
use crate::text;

/// Inputs do not grow beyond this: most faults need few bytes, and time is better spent on more inputs.
const MOST: usize = 1 << 16;

/// What an input consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Text: JSON or TOML.
    Text,
    /// A safetensors file: 8 bytes with the length of a JSON header, the header, data.
    Tensors,
    /// A line with the name of a file, then its content: a safetensors file if the name says so, else text.
    Named,
}

/// A mutation of one of `corpus`.
pub(crate) fn mutation(form: Form, corpus: &[Vec<u8>], words: &[&str], random: &mut Random) -> Vec<u8> {
    let mut input = random.choose(corpus).clone();
    // Mostly one change, so that what lies behind the first check is reached.
    let mut changes = 1;
    while changes < 8 && random.one_in(3) {
        changes += 1;
    }
    for _ in 0..changes {
        change(form, &mut input, corpus, words, random);
        input.truncate(MOST);
    }
    input
}

fn change(form: Form, input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str], random: &mut Random) {
    match form {
        Form::Text if random.one_in(4) => bytes(input, corpus, random),
        Form::Text => text::mutate(input, corpus, words, random),
        Form::Tensors => tensors(input, corpus, words, random),
        Form::Named => {
            let line = input.iter().position(|b| *b == b'\n').map_or(input.len(), |n| n + 1);
            let mut content = input.split_off(line);
            let form = if input.ends_with(b".safetensors\n") { Form::Tensors } else { Form::Text };
            if random.one_in(32) {
                let other = random.choose(corpus);
                let line = other.iter().position(|b| *b == b'\n').map_or(other.len(), |n| n + 1);
                *input = other[..line].to_vec();
            } else {
                change(form, &mut content, corpus, words, random);
            }
            input.append(&mut content);
        }
    }
}

/// Changes header or data, and mostly has the length fit the header again.
fn tensors(input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str], random: &mut Random) {
    let length = input.first_chunk().map_or(u64::MAX, |b| u64::from_le_bytes(*b));
    let end = usize::try_from(length).ok().and_then(|n| n.checked_add(8)).filter(|end| *end <= input.len());
    let Some(end) = end.filter(|_| !random.one_in(8)) else {
        return bytes(input, corpus, random);
    };
    let mut data = input.split_off(end);
    if random.one_in(4) {
        bytes(&mut data, corpus, random);
    } else {
        let mut header = input.split_off(8);
        if random.one_in(4) {
            bytes(&mut header, corpus, random);
        } else {
            text::mutate(&mut header, corpus, words, random);
        }
        if !random.one_in(8) {
            input.clear();
            input.extend((header.len() as u64).to_le_bytes());
        }
        input.append(&mut header);
    }
    input.append(&mut data);
}

/// Changes bytes, whatever they mean.
fn bytes(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let len = input.len();
    match random.below(8) {
        0 | 1 if len > 0 => input[random.below(len)] ^= 1 << random.below(8),
        2 if len > 0 => input[random.below(len)] = random.next() as u8,
        3 => input.truncate(random.below(len + 1)),
        4 => drop(input.drain(random.range(len))),
        5 => {
            let part = input[random.range(len)].to_vec();
            let at = random.below(len + 1);
            input.splice(at..at, part);
        }
        6 => {
            let other = random.choose(corpus);
            let part = other[random.range(other.len())].to_vec();
            let at = random.below(len + 1);
            let end = if random.one_in(2) { at } else { (at + part.len()).min(len) };
            input.splice(at..end, part);
        }
        _ => {
            let width = *random.choose(&[1, 2, 4, 8]);
            let value = match random.below(6) {
                0 => 0,
                1 => u64::MAX,
                2 => 1 << random.below(64),
                3 => (1u64 << random.below(64)).wrapping_sub(1),
                4 => len as u64,
                _ => random.next() % 1024,
            };
            let at = random.below(len + 1);
            let end = (at + width).min(len);
            input.splice(at..end, value.to_le_bytes()[..width].to_vec());
        }
    }
}
