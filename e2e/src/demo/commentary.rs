//! One line for each step that a node takes, as it happens.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use crds::{
    names,
    token::{Phase, Token},
};
use tokio::{sync::broadcast, task::JoinHandle};

use crate::{
    auditor::{Kind, Observation},
    bed::Bed,
};

/// Prints until it is dropped.
pub(super) struct Commentary {
    task: JoinHandle<()>,
}

impl Drop for Commentary {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Commentary {
    pub(super) fn start(bed: &Bed) -> Self {
        let live = bed.recorder.live();
        Self { task: tokio::spawn(follow(live, bed.started())) }
    }
}

async fn follow(mut live: broadcast::Receiver<Arc<Observation>>, started: Instant) {
    let mut phases = BTreeMap::new();
    loop {
        match live.recv().await {
            Ok(observation) => {
                if let Some(line) = line(&observation, &mut phases) {
                    println!("{:6.1}s   {line}", started.elapsed().as_secs_f32());
                }
            }
            // Lines that were missed are only missed here; the auditor has them.
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

fn line(observation: &Observation, phases: &mut BTreeMap<String, (u64, Phase)>) -> Option<String> {
    if observation.kind != Kind::Deployment || observation.deleted {
        return None;
    }
    let metadata = &observation.object["metadata"];
    let node = metadata["annotations"][names::NODE_NAME_ANNOTATION].as_str()?;
    let token: Token = metadata["labels"][names::TOKEN_LABEL].as_str()?.parse().ok()?;
    let now = (token.id, token.phase);
    if phases.insert(node.to_owned(), now) == Some(now) {
        return None;
    }
    let what = match token.phase {
        Phase::New => "is new: its pods start",
        Phase::Claimed => "detach: its health check fails, HAProxy takes it out",
        Phase::InPlace => "update in place: its pods stay, their containers restart",
        Phase::Degrading => "degrade: its pods are replaced while it stays attached",
        Phase::Updating => "update: its pods are replaced",
        Phase::Closed => "attach: its pods are ready, its health check is good again",
    };
    Some(format!("{node} {what} (grant {})", token.id))
}
