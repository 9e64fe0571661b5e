//! Asks the health checkers of the bed all the time, for the auditor: as a load balancer would, and whatever becomes of the API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use chrono::Utc;
use futures::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    sync::broadcast::{self, error::RecvError},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{
    auditor::{Answer, Kind, Observation},
    bed::health_check::Client,
    host::network,
};

/// Time between two rounds.
const EVERY: Duration = Duration::from_millis(250);
/// Whoever does not answer within this is asked again in the next round.
const PATIENCE: Duration = Duration::from_secs(1);

/// The rounds. Dropping the last one ends them.
#[derive(Clone)]
pub struct Listener {
    heard: Arc<Mutex<Vec<Answer>>>,
    _tasks: Arc<JoinSet<()>>,
}

/// Whom to ask.
#[derive(Debug, Default)]
struct Doors {
    /// Nodes of the bed by UID. Nodes of a fleet have addresses that lead nowhere.
    nodes: BTreeMap<String, Ipv4Addr>,
    ports: BTreeSet<u16>,
}

impl Listener {
    /// Asks every node on each health port that a resource names, once they are seen.
    pub fn start(mut live: broadcast::Receiver<Arc<Observation>>) -> Self {
        let (heard, doors) = (Arc::<Mutex<Vec<Answer>>>::default(), Arc::<Mutex<Doors>>::default());
        let mut tasks = JoinSet::new();
        let known = Arc::clone(&doors);
        tasks.spawn(async move {
            loop {
                match live.recv().await {
                    Ok(observation) => known.lock().see(&observation),
                    // A node or port that was missed is missing here, nothing else.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
        let answers = Arc::clone(&heard);
        tasks.spawn(async move {
            let mut ticks = interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let doors = doors.lock().all();
                let mut round: FuturesUnordered<_> = doors.into_iter().map(|(address, port)| ask(address, port)).collect();
                while let Some(answer) = round.next().await {
                    answers.lock().extend(answer);
                }
            }
        });
        Self { heard, _tasks: Arc::new(tasks) }
    }

    /// What was answered so far, in order, without the first so many answers.
    pub fn answers_from(&self, first: usize) -> Vec<Answer> {
        self.heard.lock().get(first..).unwrap_or_default().to_vec()
    }
}

impl Doors {
    fn see(&mut self, observation: &Observation) {
        let object = &observation.object;
        match observation.kind {
            Kind::Node => {
                let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                match address(object).filter(|_| !observation.deleted) {
                    Some(address) => drop(self.nodes.insert(uid, address)),
                    None => drop(self.nodes.remove(&uid)),
                }
            }
            // A port that is not wanted any more is refused at once.
            Kind::IngressDaemonSet => {
                let spec = &object["spec"];
                let ports = spec["healthCheckNodePorts"].as_array().into_iter().flatten().chain([&spec["healthCheckNodePort"]]);
                self.ports.extend(ports.filter_map(|port| u16::try_from(port.as_u64()?).ok()));
            }
            _ => {}
        }
    }

    fn all(&self) -> Vec<(Ipv4Addr, u16)> {
        self.nodes.values().flat_map(|address| self.ports.iter().map(|port| (*address, *port))).collect()
    }
}

fn address(node: &Value) -> Option<Ipv4Addr> {
    let addresses = node["status"]["addresses"].as_array()?;
    let internal = addresses.iter().find(|address| address["type"] == "InternalIP")?;
    internal["address"].as_str()?.parse().ok().filter(|address| network::is_node_address(*address))
}

async fn ask(address: Ipv4Addr, port: u16) -> Option<Answer> {
    let answer = timeout(PATIENCE, Client::new((address, port).into(), false).check()).await.ok()?.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Answer::read(Utc::now(), port, status, body)
}
