//! How many requests may be under way: more while answers are quick, fewer when the API server asks for it, is slow, or is gone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// An answer that took longer counts as a sign of overload.
const SLOW: Duration = Duration::from_secs(2);
/// Answers that were under way together tell of one overload, not of many.
const ONE_CUT_PER: Duration = Duration::from_millis(500);
/// What an overload leaves of the limit.
const CUT: f64 = 0.7;

/// How a request went, as far as its like should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There was an answer after this time.
    Answered(Duration),
    /// 429 or a fault of the server.
    Overloaded,
    /// No answer.
    Unreachable,
}

/// The limit itself: additive increase, multiplicative decrease.
#[derive(Debug)]
struct Aimd {
    limit: f64,
    least: f64,
    most: f64,
    last_cut: Option<Instant>,
}

impl Aimd {
    fn note(&mut self, outcome: Outcome, now: Instant) {
        match outcome {
            Outcome::Answered(took) if took <= SLOW => self.limit = (self.limit + 1.0 / self.limit).min(self.most),
            Outcome::Answered(_) | Outcome::Overloaded => {
                if self.last_cut.is_none_or(|last| now.duration_since(last) >= ONE_CUT_PER) {
                    self.last_cut = Some(now);
                    self.limit = (self.limit * CUT).max(self.least);
                }
            }
            // Who comes back from an outage is not met by everything at once: the limit grows from here with each answer.
            Outcome::Unreachable => self.limit = self.least,
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between least and most, which are small and positive")]
    fn slots(&self) -> usize {
        self.limit as usize
    }
}

#[derive(Debug)]
struct State {
    aimd: Aimd,
    /// Permits that exist, used or not.
    circulating: usize,
}

/// Slots for requests.
#[derive(Debug)]
pub(super) struct Limiter {
    permits: Arc<Semaphore>,
    state: Mutex<State>,
}

/// The right to make one request at a time.
#[derive(Debug)]
pub(super) struct Slot {
    permit: Option<OwnedSemaphorePermit>,
    limiter: Arc<Limiter>,
}

impl Limiter {
    pub fn new(least: u8, most: u8) -> Arc<Self> {
        let aimd = Aimd { limit: f64::from(most), least: f64::from(least), most: f64::from(most), last_cut: None };
        let circulating = aimd.slots();
        Arc::new(Self { permits: Arc::new(Semaphore::new(circulating)), state: Mutex::new(State { aimd, circulating }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot, as soon as there is one.
    pub async fn slot(self: &Arc<Self>) -> Slot {
        // It is never closed.
        let permit = self.permits.clone().acquire_owned().await.ok();
        Slot { permit, limiter: self.clone() }
    }

    /// A slot, if there is one.
    pub fn try_slot(self: &Arc<Self>) -> Option<Slot> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        Some(Slot { permit: Some(permit), limiter: self.clone() })
    }

    /// The limit at present.
    pub fn limit(&self) -> usize {
        self.state().aimd.slots()
    }

    /// Something that is more urgent waits for the same server.
    pub fn hold_back(&self) {
        self.note(Outcome::Overloaded, Instant::now());
    }

    fn note(&self, outcome: Outcome, now: Instant) {
        let mut state = self.state();
        state.aimd.note(outcome, now);
        let wanted = state.aimd.slots();
        if state.circulating < wanted {
            self.permits.add_permits(wanted - state.circulating);
            state.circulating = wanted;
        } else if state.circulating > wanted {
            state.circulating -= self.permits.forget_permits(state.circulating - wanted);
        }
    }
}

impl Slot {
    /// Tells how a request went.
    pub fn note(&self, outcome: Outcome) {
        self.limiter.note(outcome, Instant::now());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.limiter.state();
        if state.circulating > state.aimd.slots() {
            state.circulating -= 1;
            if let Some(permit) = self.permit.take() {
                permit.forget();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Outcome = Outcome::Answered(Duration::from_millis(5));

    #[tokio::test(start_paused = true)]
    async fn a_request_to_slow_down_cuts_the_limit_once_however_many_hear_it() {
        let limiter = Limiter::new(4, 64);
        let slots: Vec<_> = (0..64).map_while(|_| limiter.try_slot()).collect();
        assert!(slots.len() == 64 && limiter.try_slot().is_none());
        for slot in &slots {
            slot.note(Outcome::Overloaded);
        }
        assert_eq!(limiter.limit(), 44);
        drop(slots);
        let slots: Vec<_> = (0..64).map_while(|_| limiter.try_slot()).collect();
        assert_eq!(slots.len(), 44);
        tokio::time::advance(Duration::from_secs(1)).await;
        slots[0].note(Outcome::Answered(Duration::from_secs(3)));
        assert_eq!(limiter.limit(), 31);
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_outage_the_limit_grows_again_with_the_answers() {
        let limiter = Limiter::new(4, 48);
        limiter.slot().await.note(Outcome::Unreachable);
        assert_eq!(limiter.limit(), 4);
        let mut limits = vec![];
        for _ in 0..1_200 {
            limiter.slot().await.note(QUICK);
            limits.push(limiter.limit());
        }
        assert!(limits.is_sorted() && limits[20] == 7 && limits[1_199] == 48, "{:?}", &limits[..30]);
        let slots: Vec<_> = (0..64).map_while(|_| limiter.try_slot()).collect();
        assert_eq!(slots.len(), 48);
    }

    #[tokio::test(start_paused = true)]
    async fn slots_in_use_while_the_limit_falls_are_not_given_out_again() {
        let limiter = Limiter::new(2, 8);
        let slots: Vec<_> = (0..8).map_while(|_| limiter.try_slot()).collect();
        slots[0].note(Outcome::Unreachable);
        let mut slots = slots.into_iter();
        slots.by_ref().take(6).for_each(drop);
        assert!(limiter.try_slot().is_none());
        slots.for_each(drop);
        assert_eq!((0..8).map_while(|_| limiter.try_slot()).collect::<Vec<_>>().len(), 2);
    }
}
