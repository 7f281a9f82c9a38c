//! Questions to slots that wait for an answer, by tag.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::sync::oneshot;

use super::lock;

/// Questions under way.
#[derive(Debug)]
pub(super) struct Questions<A>(Mutex<HashMap<u64, oneshot::Sender<A>>>);

impl<A> Default for Questions<A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<A> Questions<A> {
    /// Begins to wait for the answer under `tag`.
    pub(super) fn ask(&self, tag: u64) -> Question<'_, A> {
        let (sender, answer) = oneshot::channel();
        lock(&self.0).insert(tag, sender);
        Question { questions: self, tag, answer }
    }

    /// Takes an answer.
    pub(super) fn on_answer(&self, tag: u64, answer: A) {
        let asker = lock(&self.0).remove(&tag);
        if let Some(asker) = asker {
            let _asker_gave_up = asker.send(answer);
        }
    }
}

/// One question, forgotten however it ends, also if its asker is gone.
pub(super) struct Question<'a, A> {
    questions: &'a Questions<A>,
    pub(super) tag: u64,
    answer: oneshot::Receiver<A>,
}

impl<A> Question<'_, A> {
    /// Waits for the answer.
    pub(super) async fn answered(mut self) -> Option<A> {
        (&mut self.answer).await.ok()
    }
}

impl<A> Drop for Question<'_, A> {
    fn drop(&mut self) {
        lock(&self.questions.0).remove(&self.tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_is_answered_once_or_forgotten() {
        let questions = Questions::default();
        let (one, two) = (questions.ask(1), questions.ask(2));
        questions.on_answer(1, "yes");
        questions.on_answer(3, "to nobody");
        assert_eq!(one.answered().await, Some("yes"));
        drop(two);
        assert!(lock(&questions.0).is_empty());
    }
}
