//! How many requests may be under way: as many as the API server takes without complaint.
//!
//! A request that got no answer, 429 or a fault of the server takes a third of the limit away, once for all that were under way
//! together. An answer is no complaint, however slow: what is slow is worse off with fewer slots, not better, and what is too slow
//! gets no answer in time, which counts. After requests without an answer the limit doubles per round of answers until it is what
//! it was; after a complaint it feels its way up from there.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Requests that were under way together tell of one overload, not of many.
const ONE_CUT_PER: Duration = Duration::from_millis(500);
/// What an overload leaves of the limit.
const CUT: f64 = 0.7;
/// What an answer adds to a limit that is known to be bearable, and to one that is not: there a round of answers adds one at least.
const GROWTH: (f64, f64) = (1.0, 0.1);

/// How a request went, as far as its like should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There was an answer.
    Answered,
    /// 429 or a fault of the server.
    Overloaded,
    /// No answer, or not in time.
    Unreachable,
}

/// The limit itself: additive increase, multiplicative decrease.
#[derive(Debug)]
struct Aimd {
    limit: f64,
    least: f64,
    most: f64,
    /// What the server is known to bear.
    bearable: f64,
    last_cut: Option<Instant>,
}

impl Aimd {
    fn note(&mut self, outcome: Outcome, now: Instant) {
        if outcome == Outcome::Answered {
            let growth = if self.limit < self.bearable { GROWTH.0 } else { GROWTH.1.max(1.0 / self.limit) };
            self.limit = (self.limit + growth).min(self.most);
            self.bearable = self.bearable.max(self.limit);
            return;
        }
        if self.last_cut.is_some_and(|last| now.duration_since(last) < ONE_CUT_PER) {
            return;
        }
        self.last_cut = Some(now);
        self.limit = (self.limit * CUT).max(self.least);
        // A server that was gone bears what it did before; one that complains does not.
        if outcome == Outcome::Overloaded {
            self.bearable = self.limit;
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
    /// From `least` to `most` slots; it begins with the most.
    pub fn new(least: u8, most: u8) -> Arc<Self> {
        let (least, most) = (f64::from(least), f64::from(most));
        let aimd = Aimd { limit: most, least: least.min(most), most, bearable: most, last_cut: None };
        let circulating = aimd.slots();
        Arc::new(Self { permits: Arc::new(Semaphore::new(circulating)), state: Mutex::new(State { aimd, circulating }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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

    #[tokio::test(start_paused = true)]
    async fn simultaneous_overload_answers_cut_the_limit_only_once() {
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
        slots[0].note(Outcome::Overloaded);
        assert_eq!(limiter.limit(), 31);
        // From here it feels its way up.
        let mut answers = 0;
        while limiter.limit() < 64 {
            slots[0].note(Outcome::Answered);
            answers += 1;
        }
        assert!((300..400).contains(&answers), "{answers}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unanswered_request_briefly_costs_a_third_of_the_slots() {
        let limiter = Limiter::new(4, 48);
        limiter.slot().await.note(Outcome::Unreachable);
        assert_eq!(limiter.limit(), 33);
        for _ in 0..15 {
            limiter.slot().await.note(Outcome::Answered);
        }
        assert_eq!(limiter.limit(), 48);
        let slots: Vec<_> = (0..64).map_while(|_| limiter.try_slot()).collect();
        assert_eq!(slots.len(), 48);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_after_an_outage_restore_the_limit_without_a_pause() {
        let limiter = Limiter::new(20, 48);
        for _ in 0..60 {
            limiter.slot().await.note(Outcome::Unreachable);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(limiter.limit(), 20);
        for _ in 0..28 {
            limiter.slot().await.note(Outcome::Answered);
        }
        assert_eq!(limiter.limit(), 48);
    }

    #[tokio::test(start_paused = true)]
    async fn slots_above_a_lowered_limit_are_not_given_out_again() {
        let limiter = Limiter::new(2, 8);
        let slots: Vec<_> = (0..8).map_while(|_| limiter.try_slot()).collect();
        slots[0].note(Outcome::Unreachable);
        let mut slots = slots.into_iter();
        slots.by_ref().take(3).for_each(drop);
        assert!(limiter.try_slot().is_none());
        slots.for_each(drop);
        assert_eq!((0..8).map_while(|_| limiter.try_slot()).collect::<Vec<_>>().len(), 5);
    }
}
