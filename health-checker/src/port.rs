//! The health port from the moment that this process has it: answering, handing over, going on when a successor ends, and
//! leaving.

use crate::{
    connections::Table,
    handover::{Held, Line},
    metrics::Metrics,
    server::{self, HealthPort},
};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// What answers on the port.
#[derive(Debug)]
pub struct Service {
    /// Answers.
    pub respond: Arc<HealthPort>,
    /// Who is connected.
    pub table: Arc<Table>,
    /// Counts hand-overs.
    pub metrics: Arc<Metrics>,
}

/// When to end.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// This process was asked to end; it answers on, and gives the port to whoever asks.
    pub asked: CancellationToken,
    /// It ends now.
    pub now: CancellationToken,
}

/// Serves until the end. A process that has given the port away and is asked to end leaves with its last connection.
pub async fn serve(held: Held, service: &Service, ending: &Ending) {
    let Held { port, mut door } = held;
    let states = async {
        let mut successor: Option<Line> = None;
        loop {
            let asked = ending.asked.is_cancelled();
            // Clients shall not come back to a process that is about to end.
            service.respond.leaving.store(asked || successor.is_some(), Relaxed);
            match &mut successor {
                None => tokio::select! {
                    () = ending.asked.cancelled(), if !asked => {}
                    line = door.give(&port) => {
                        service.metrics.handovers.given.inc();
                        successor = Some(line);
                    }
                    () = server::accept(&port, &service.table, &service.respond, &ending.now) => {}
                },
                Some(line) => tokio::select! {
                    () = ending.asked.cancelled(), if !asked => {}
                    () = service.table.emptied(), if asked => return,
                    () = line.broken() => {
                        info!("the process that had taken the port has ended; answering again");
                        service.metrics.handovers.back.inc();
                        successor = None;
                    }
                },
            }
        }
    };
    tokio::select! {
        biased;
        () = ending.now.cancelled() => {}
        () = server::sweep(&service.table) => {}
        () = states => {}
    }
    ending.now.cancel();
    drop(port);
    server::finish(&service.table).await;
}
