//! Many scenarios in one run: in groups that share beds, several beds at once (`make test`), or each in its own bed, by default one after
//! the other (`make soak`). A scenario runs once. What failed has failed, and the others run all the same. Nothing here runs in the
//! namespaces of a bed: each run starts the program `bed`. It reads the verdicts that `bed` prints. They go to the terminal and to files in
//! `target/bed`.

mod compiler;
mod groups;
mod kubelets;
mod soak;
mod verdict;
mod versions;

use std::collections::VecDeque;

use anyhow::Result;
use parking_lot::Mutex;

pub use groups::test;
pub use kubelets::kubelets;
pub use soak::soak;
pub use versions::versions;

/// Does the work of each item, in their order, so many at once. After an error no other begins.
fn several<T: Send>(at_once: usize, items: impl IntoIterator<Item = T>, work: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let queue: Mutex<VecDeque<T>> = Mutex::new(items.into_iter().collect());
    let next = || queue.lock().pop_front();
    let worker = || {
        while let Some(item) = next() {
            work(item).inspect_err(|_| queue.lock().clear())?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker ended"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_runs_once_and_none_after_an_error() {
        let done = Mutex::new(Vec::new());
        several(3, 0..20, |item| {
            done.lock().push(item);
            Ok(())
        })
        .unwrap();
        let mut all = std::mem::take(&mut *done.lock());
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
        let failed = several(1, 0..20, |item| {
            done.lock().push(item);
            anyhow::ensure!(item < 2, "{item} fails");
            Ok(())
        });
        assert_eq!(failed.unwrap_err().to_string(), "2 fails");
        assert_eq!(*done.lock(), [0, 1, 2]);
    }
}
