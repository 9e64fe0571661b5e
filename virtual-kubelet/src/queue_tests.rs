use futures::FutureExt;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The keys that are due at this moment, in their order.
fn due(queue: &mut KeyedQueue<&'static str>) -> Vec<&'static str> {
    std::iter::from_fn(|| queue.next().now_or_never()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_key_is_removed_once_its_policy_gives_up() {
    let policy = RetryPolicy::new(|attempt: &Attempt<'_, &str>| if attempt.tries < 20 { Retry::After(SECOND) } else { Retry::GiveUp });
    let mut queue = KeyedQueue::default();
    queue.add("a");
    let mut tries = 0;
    loop {
        let key = queue.next().await;
        tries += 1;
        if queue.failed(&key, &policy, "no") == Retry::GiveUp {
            break;
        }
    }
    assert_eq!(tries, 20);
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_default_policy_never_gives_up_and_bounds_its_pauses() {
    let (policy, mut queue, started) = (RetryPolicy::default(), KeyedQueue::default(), Instant::now());
    queue.add("a");
    for _ in 0..1000 {
        let key = queue.next().await;
        assert!(matches!(queue.failed(&key, &policy, "no"), Retry::After(pause) if pause <= SECOND * 30));
    }
    assert!(started.elapsed() > SECOND * 29_000);
    assert_eq!(queue.waiting(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_pause_is_kept_at_each_try() {
    let (policy, mut queue) = (RetryPolicy::fixed(SECOND * 7), KeyedQueue::default());
    queue.add("a");
    for _ in 0..5 {
        let key = queue.next().await;
        let before = Instant::now();
        queue.failed(&key, &policy, "no");
        queue.next().await;
        assert_eq!(before.elapsed(), SECOND * 7);
        queue.done(&key);
        queue.add("a");
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_receives_key_error_tries_and_time_of_addition() {
    let started = Instant::now();
    let policy = RetryPolicy::new(move |attempt: &Attempt<'_, &str>| {
        assert_eq!((*attempt.key, attempt.first_added, attempt.error), ("a", started, "no"));
        Retry::After(SECOND * attempt.tries)
    });
    let mut queue = KeyedQueue::default();
    queue.add("a");
    for tries in 1..4 {
        let key = queue.next().await;
        assert_eq!(queue.failed(&key, &policy, "no"), Retry::After(SECOND * tries));
    }
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_key_does_not_come() {
    let mut queue = KeyedQueue::default();
    queue.add("a");
    queue.add_after("b", SECOND);
    queue.forget(&"a");
    queue.forget(&"b");
    assert!(queue.is_empty());
    assert!(due(&mut queue).is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_empty_queue_waits_for_ever() {
    let mut queue = KeyedQueue::<u8>::default();
    assert!(queue.is_empty());
    assert!(tokio::time::timeout(SECOND * 3600, queue.next()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn due_keys_come_in_the_order_of_their_addition() {
    let mut queue = KeyedQueue::default();
    for key in ["c", "a", "b"] {
        queue.add(key);
    }
    assert_eq!(due(&mut queue), ["c", "a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn delayed_keys_come_in_order_and_only_when_due() {
    let (mut queue, started) = (KeyedQueue::default(), Instant::now());
    for (key, seconds) in [("c", 3), ("a", 1), ("b", 2)] {
        queue.add_after(key, SECOND * seconds);
    }
    for (key, seconds) in [("a", 1), ("b", 2), ("c", 3)] {
        assert_eq!(queue.next().await, key);
        assert_eq!(started.elapsed(), SECOND * seconds);
    }
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_two_times_counts() {
    let (mut queue, started) = (KeyedQueue::default(), Instant::now());
    queue.add_after("a", SECOND * 60);
    queue.add_after("a", SECOND);
    queue.add_after("a", SECOND * 30);
    assert_eq!(queue.waiting(), 1);
    queue.next().await;
    assert_eq!(started.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_becomes_due_earlier_moves_to_the_front() {
    let mut queue = KeyedQueue::default();
    queue.add_after("a", SECOND);
    queue.add_after("b", SECOND * 2);
    queue.add_after("c", SECOND * 3);
    queue.add("c");
    assert_eq!(queue.next().await, "c");
    assert_eq!(queue.next().await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_key_added_in_progress_returns_only_after_completion() {
    let mut queue = KeyedQueue::default();
    queue.add("a");
    let key = queue.next().await;
    queue.add("a");
    queue.add("a");
    assert!(due(&mut queue).is_empty());
    queue.done(&key);
    assert_eq!(due(&mut queue), ["a"]);
    queue.done(&key);
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_added_in_progress_skips_the_pause_after_failure() {
    let (policy, mut queue) = (RetryPolicy::fixed(SECOND * 30), KeyedQueue::default());
    queue.add("a");
    let key = queue.next().await;
    queue.add("a");
    queue.failed(&key, &policy, "no");
    assert_eq!(due(&mut queue), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn twenty_keys_are_worked_on_at_the_same_time() {
    let mut queue = KeyedQueue::default();
    (0..20).for_each(|key| queue.add(key));
    let taken: Vec<i32> = std::iter::from_fn(|| queue.next().now_or_never()).collect();
    assert_eq!(taken, (0..20).collect::<Vec<_>>());
    for key in &taken {
        queue.done(key);
    }
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_success_starts_the_pauses_anew() {
    let (policy, mut queue) = (RetryPolicy::exponential(SECOND, SECOND * 60), KeyedQueue::default());
    queue.add("a");
    for expected in [1, 2, 4] {
        let key = queue.next().await;
        assert_eq!(queue.failed(&key, &policy, "no"), Retry::After(SECOND * expected));
    }
    let key = queue.next().await;
    queue.done(&key);
    queue.add("a");
    let key = queue.next().await;
    assert_eq!(queue.failed(&key, &policy, "no"), Retry::After(SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_key_forgotten_in_progress_is_not_retried() {
    let (policy, mut queue) = (RetryPolicy::fixed(SECOND), KeyedQueue::default());
    queue.add("a");
    let key = queue.next().await;
    queue.forget(&key);
    assert_eq!(queue.failed(&key, &policy, "no"), Retry::GiveUp);
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_added_after_being_forgotten_in_progress_is_retried() {
    let (policy, mut queue) = (RetryPolicy::fixed(SECOND), KeyedQueue::default());
    queue.add("a");
    let key = queue.next().await;
    queue.forget(&key);
    queue.add("a");
    queue.failed(&key, &policy, "no");
    assert_eq!(due(&mut queue), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_given_up_loses_no_key() {
    let mut queue = KeyedQueue::default();
    queue.add_after("a", SECOND);
    assert!(queue.next().now_or_never().is_none());
    assert_eq!(queue.next().await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_key_is_failing_until_its_next_success() {
    let mut queue = KeyedQueue::default();
    queue.add("a");
    let key = queue.next().await;
    assert!(!queue.is_failing(&"a"));
    queue.failed(&key, &RetryPolicy::fixed(SECOND), "why");
    assert!(queue.is_failing(&"a") && queue.waiting() == 1);
    let key = queue.next().await;
    assert!(queue.is_failing(&"a"));
    queue.done(&key);
    assert!(!queue.is_failing(&"a") && queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_success_resets_the_failures_of_a_key_added_again() {
    let (policy, mut queue) = (RetryPolicy::exponential(SECOND, SECOND * 60), KeyedQueue::default());
    queue.add("a");
    for pause in [1, 2, 4] {
        let key = queue.next().await;
        assert_eq!(queue.failed(&key, &policy, "no"), Retry::After(SECOND * pause));
    }
    let key = queue.next().await;
    queue.add("a");
    queue.done(&key);
    let key = queue.next().await;
    assert_eq!(queue.failed(&key, &policy, "no"), Retry::After(SECOND));
}
