//! What is wrong with a job file: every problem found, one per line.

/// All problems that one step found in a job. Shown one per line, each saying where (`section.key`),
/// what is wrong, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .messages.join("\n"))]
pub struct JobError {
    messages: Vec<String>,
}

impl JobError {
    /// The problems, one message each, never none.
    pub fn messages(&self) -> &[String] {
        &self.messages
    }

    /// An error of a single problem.
    pub(super) fn one(message: impl Into<String>) -> Self {
        Self { messages: vec![on_one_line(&message.into())] }
    }

    /// The same problems, with `why` in parentheses after those that name `key`.
    pub(super) fn explained(mut self, key: &str, why: &str) -> Self {
        for message in self.messages.iter_mut().filter(|message| message.contains(key)) {
            *message = format!("{message} ({})", on_one_line(why));
        }
        self
    }

    /// Fails with `messages` if there are any.
    pub(super) fn if_any(messages: Vec<String>) -> Result<(), Self> {
        if messages.is_empty() {
            return Ok(());
        }
        Err(Self { messages: messages.iter().map(|message| on_one_line(message)).collect() })
    }
}

/// Escapes control characters: names and values come from the file, and a quoted TOML key may hold a
/// line break or a terminal escape.
fn on_one_line(message: &str) -> String {
    let mut line = String::with_capacity(message.len());
    for c in message.chars() {
        if c.is_control() { line.extend(c.escape_debug()) } else { line.push(c) }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_one_problem_per_line() {
        let error = JobError::if_any(vec!["train.a: b".into(), "x\ny\u{1b}".into()]).unwrap_err();
        assert_eq!(error.to_string(), "train.a: b\nx\\ny\\u{1b}");
        assert_eq!(error.messages().len(), 2);
    }

    #[test]
    fn no_problem_is_no_error() {
        assert_eq!(JobError::if_any(Vec::new()), Ok(()));
    }
}
