//! Long requests, some at a time: a handler that goes through many things lets other clients in between.

/// Steps without a pause: about a millisecond.
pub(super) const STEP_COUNT_MAX: usize = 256;

/// Counts the steps of one request.
#[derive(Debug, Default)]
pub(super) struct Pace(usize);

impl Pace {
    /// Counts `count` steps; gives the thread to others when it is their turn. Hold no lock across it.
    pub(super) async fn steps(&mut self, count: usize) {
        self.0 += count;
        if self.0 >= STEP_COUNT_MAX {
            self.0 = 0;
            tokio::task::yield_now().await;
        }
    }

    /// Counts one step.
    pub(super) async fn step(&mut self) {
        self.steps(1).await;
    }
}
