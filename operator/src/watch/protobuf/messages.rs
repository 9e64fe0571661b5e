//! Nodes and pods as the API server writes them in protobuf: the fields that are read, by the numbers of `generated.proto` in
//! k8s.io/api and k8s.io/apimachinery. Numbers are never given to other fields there.
//!
//! What is no pointer in Go is always written, also when it is empty; in JSON it is left out then, and so it is here. Texts that somebody
//! is free to write are taken as bytes: nobody has checked that they are UTF-8 (a container's last words need not be).

use k8s_openapi::{
    api::core::v1,
    apimachinery::pkg::apis::meta::v1::{self as meta},
    jiff::Timestamp,
};
use kube::core::{
    Status,
    watch::{Bookmark, BookmarkMeta},
};
use prost::Message;
use std::collections::BTreeMap;

/// What is no UTF-8 is replaced, as it is in JSON.
fn readable(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn text(bytes: Vec<u8>) -> Option<String> {
    (!bytes.is_empty()).then(|| readable(bytes))
}

fn name(name: String) -> Option<String> {
    (!name.is_empty()).then_some(name)
}

fn texts(map: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, String> {
    map.into_iter().map(|(key, value)| (key, readable(value))).collect()
}

fn each<P: Into<W>, W>(parts: Vec<P>) -> Option<Vec<W>> {
    (!parts.is_empty()).then(|| parts.into_iter().map(Into::into).collect())
}

/// An object together with what it is.
#[derive(Message)]
pub(super) struct Unknown {
    #[prost(message, optional, tag = "1")]
    pub type_meta: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    pub raw: prost::bytes::Bytes,
}

#[derive(Message)]
pub(super) struct TypeMeta {
    #[prost(string, tag = "1")]
    pub api_version: String,
    #[prost(string, tag = "2")]
    pub kind: String,
}

#[derive(Message)]
pub(super) struct WatchEvent {
    #[prost(string, tag = "1")]
    pub type_: String,
    #[prost(message, optional, tag = "2")]
    pub object: Option<RawExtension>,
}

#[derive(Message)]
pub(super) struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    pub raw: prost::bytes::Bytes,
}

/// Why a request is refused, or a watch ends.
#[derive(Message)]
pub(super) struct Refusal {
    #[prost(bytes = "vec", tag = "3")]
    message: Vec<u8>,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[cfg(test)]
impl Refusal {
    pub(super) fn of(message: &str, reason: &str, code: i32) -> Self {
        Self { message: message.as_bytes().to_vec(), reason: reason.to_owned(), code }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::failure(&readable(refusal.message), &refusal.reason).with_code(u16::try_from(refusal.code).unwrap_or_default())
    }
}

/// Without its fields it is no time at all.
#[derive(Message)]
struct Time {
    #[prost(int64, optional, tag = "1")]
    seconds: Option<i64>,
}

fn time(time: Option<Time>) -> Option<meta::Time> {
    Timestamp::from_second(time?.seconds?).ok().map(meta::Time)
}

#[derive(Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(int64, tag = "7")]
    generation: i64,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, bytes", tag = "12")]
    annotations: BTreeMap<String, Vec<u8>>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<OwnerReference>,
}

impl From<ObjectMeta> for meta::ObjectMeta {
    fn from(part: ObjectMeta) -> Self {
        Self {
            name: name(part.name),
            namespace: name(part.namespace),
            uid: name(part.uid),
            resource_version: name(part.resource_version),
            generation: (part.generation != 0).then_some(part.generation),
            creation_timestamp: time(part.creation_timestamp),
            deletion_timestamp: time(part.deletion_timestamp),
            labels: (!part.labels.is_empty()).then_some(part.labels),
            annotations: (!part.annotations.is_empty()).then(|| texts(part.annotations)),
            owner_references: each(part.owner_references),
            ..Self::default()
        }
    }
}

/// What a bookmark has.
#[derive(Message)]
pub(super) struct OnlyMeta {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

impl OnlyMeta {
    pub(super) fn bookmark(self, types: TypeMeta) -> Bookmark {
        let meta = self.metadata.unwrap_or_default();
        Bookmark {
            types: kube::core::TypeMeta { api_version: types.api_version, kind: types.kind },
            metadata: BookmarkMeta { resource_version: meta.resource_version, annotations: texts(meta.annotations) },
        }
    }
}

/// Messages with the fields of others, which they become: texts that are left out when they are empty; those that are not; and what is
/// given with its conversion.
macro_rules! messages {
    ($($message:ident of $whole:path {
        $(optional: $($optional:ident = $optional_tag:literal),+;)?
        $(required: $($required:ident = $required_tag:literal),+;)?
        $($(#[$attribute:meta])+ $field:ident: $type:ty => $convert:expr),* $(,)?
    })+) => {$(
        #[derive(Message)]
        struct $message {
            $($(#[prost(bytes = "vec", tag = $optional_tag)] $optional: Vec<u8>,)+)?
            $($(#[prost(bytes = "vec", tag = $required_tag)] $required: Vec<u8>,)+)?
            $($(#[$attribute])+ $field: $type,)*
        }

        impl From<$message> for $whole {
            // Those that are read whole have no others.
            #[allow(clippy::needless_update)]
            fn from(part: $message) -> Self {
                Self {
                    $($($optional: text(part.$optional),)+)?
                    $($($required: readable(part.$required),)+)?
                    $($field: $convert(part.$field),)*
                    ..Self::default()
                }
            }
        }
    )+};
}

/// The same.
fn same<T>(value: T) -> T {
    value
}

fn part<P: Into<W>, W>(part: Option<P>) -> Option<W> {
    part.map(Into::into)
}

fn all<P: Into<W>, W>(parts: Vec<P>) -> Vec<W> {
    each(parts).unwrap_or_default()
}

fn set(is: bool) -> Option<bool> {
    is.then_some(true)
}

messages! {
    OwnerReference of meta::OwnerReference {
        required: kind = "1", name = "3", uid = "4", api_version = "5";
        #[prost(bool, optional, tag = "6")]
        controller: Option<bool> => same,
        #[prost(bool, optional, tag = "7")]
        block_owner_deletion: Option<bool> => same,
    }

    Taint of v1::Taint {
        optional: value = "2";
        required: key = "1", effect = "3";
        #[prost(message, optional, tag = "4")]
        time_added: Option<Time> => time,
    }
    NodeSpec of v1::NodeSpec {
        #[prost(bool, tag = "4")]
        unschedulable: bool => set,
        #[prost(message, repeated, tag = "5")]
        taints: Vec<Taint> => each,
    }
    NodeCondition of v1::NodeCondition {
        required: type_ = "1", status = "2";
        #[prost(message, optional, tag = "3")]
        last_heartbeat_time: Option<Time> => time,
        #[prost(message, optional, tag = "4")]
        last_transition_time: Option<Time> => time,
    }
    NodeAddress of v1::NodeAddress {
        required: type_ = "1", address = "2";
    }
    NodeSystemInfo of v1::NodeSystemInfo {
        required: machine_id = "1", system_uuid = "2", boot_id = "3";
    }
    NodeStatus of v1::NodeStatus {
        #[prost(message, repeated, tag = "4")]
        conditions: Vec<NodeCondition> => each,
        #[prost(message, repeated, tag = "5")]
        addresses: Vec<NodeAddress> => each,
        #[prost(message, optional, tag = "7")]
        node_info: Option<NodeSystemInfo> => part,
    }

    Container of v1::Container {
        optional: image = "2";
        required: name = "1";
    }
    PodReadinessGate of v1::PodReadinessGate {
        required: condition_type = "1";
    }
    PodSpec of v1::PodSpec {
        optional: node_name = "10";
        #[prost(message, repeated, tag = "2")]
        containers: Vec<Container> => all,
        #[prost(int64, optional, tag = "4")]
        termination_grace_period_seconds: Option<i64> => same,
        #[prost(message, repeated, tag = "28")]
        readiness_gates: Vec<PodReadinessGate> => each,
    }
    PodCondition of v1::PodCondition {
        optional: reason = "5", message = "6";
        required: type_ = "1", status = "2";
    }
    ContainerStateWaiting of v1::ContainerStateWaiting {
        optional: reason = "1", message = "2";
    }
    ContainerStateRunning of v1::ContainerStateRunning {
        #[prost(message, optional, tag = "1")]
        started_at: Option<Time> => time,
    }
    ContainerStateTerminated of v1::ContainerStateTerminated {
        optional: reason = "3", message = "4", container_id = "7";
        #[prost(int32, tag = "1")]
        exit_code: i32 => same,
        #[prost(int32, tag = "2")]
        signal: i32 => |signal| (signal != 0).then_some(signal),
        #[prost(message, optional, tag = "5")]
        started_at: Option<Time> => time,
        #[prost(message, optional, tag = "6")]
        finished_at: Option<Time> => time,
    }
    ContainerState of v1::ContainerState {
        #[prost(message, optional, tag = "1")]
        waiting: Option<ContainerStateWaiting> => part,
        #[prost(message, optional, tag = "2")]
        running: Option<ContainerStateRunning> => part,
        #[prost(message, optional, tag = "3")]
        terminated: Option<ContainerStateTerminated> => part,
    }
    ContainerStatus of v1::ContainerStatus {
        optional: container_id = "8";
        required: name = "1", image = "6", image_id = "7";
        #[prost(message, optional, tag = "2")]
        state: Option<ContainerState> => part,
        #[prost(message, optional, tag = "3")]
        last_state: Option<ContainerState> => part,
        #[prost(bool, tag = "4")]
        ready: bool => same,
        #[prost(int32, tag = "5")]
        restart_count: i32 => same,
        #[prost(bool, optional, tag = "9")]
        started: Option<bool> => same,
    }
    PodStatus of v1::PodStatus {
        optional: phase = "1", message = "3", reason = "4";
        #[prost(message, repeated, tag = "2")]
        conditions: Vec<PodCondition> => each,
        #[prost(message, optional, tag = "7")]
        start_time: Option<Time> => time,
        #[prost(message, repeated, tag = "8")]
        container_statuses: Vec<ContainerStatus> => each,
        #[prost(message, repeated, tag = "10")]
        init_container_statuses: Vec<ContainerStatus> => each,
        #[prost(int64, tag = "17")]
        observed_generation: i64 => |generation| (generation != 0).then_some(generation),
    }
}

/// Kinds of objects, with their specs and statuses.
macro_rules! objects {
    ($($message:ident of $whole:path { $spec:ty, $status:ty })+) => {$(
        #[derive(Message)]
        pub(super) struct $message {
            #[prost(message, optional, tag = "1")]
            metadata: Option<ObjectMeta>,
            #[prost(message, optional, tag = "2")]
            spec: Option<$spec>,
            #[prost(message, optional, tag = "3")]
            status: Option<$status>,
        }

        impl From<$message> for $whole {
            fn from(object: $message) -> Self {
                Self {
                    metadata: part(object.metadata).unwrap_or_default(),
                    spec: part(object.spec),
                    status: part(object.status),
                }
            }
        }
    )+};
}

objects! {
    Node of v1::Node { NodeSpec, NodeStatus }
    Pod of v1::Pod { PodSpec, PodStatus }
}
