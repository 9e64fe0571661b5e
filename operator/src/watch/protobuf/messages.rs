//! Nodes and pods as the API server writes them in protobuf: the fields that are read, by the numbers of `generated.proto` in
//! k8s.io/api and k8s.io/apimachinery. Numbers are never given to other fields there.
//!
//! What is no pointer in Go is always written, also when it is empty; in JSON it is left out then, and so it is here. Texts that somebody
//! is free to write are taken as bytes: nobody has checked that they are UTF-8 (a termination message need not be).

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
pub(super) struct StatusMessage {
    #[prost(bytes = "vec", tag = "3")]
    message: Vec<u8>,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[cfg(test)]
impl StatusMessage {
    pub(super) fn of(message: &str, reason: &str, code: i32) -> Self {
        Self { message: message.as_bytes().to_vec(), reason: reason.to_owned(), code }
    }
}

impl From<StatusMessage> for Status {
    fn from(refusal: StatusMessage) -> Self {
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
            metadata: BookmarkMeta { resource_version: readable(meta.resource_version), annotations: texts(meta.annotations) },
        }
    }
}

/// Messages with the fields of others, which they become: texts that are left out when they are empty, texts that are not, times, other
/// messages (one and many), and what is given with its conversion.
macro_rules! messages {
    ($($message:ident of $whole:path {
        $(optional: $($optional:ident = $optional_tag:literal),+;)?
        $(required: $($required:ident = $required_tag:literal),+;)?
        $(times: $($time:ident = $time_tag:literal),+;)?
        $(parts: $($part:ident = $part_tag:literal of $of:ty),+;)?
        $(lists: $($list:ident = $list_tag:literal of $item:ty),+;)?
        $($(#[$attribute:meta])+ $field:ident: $type:ty => $convert:expr),* $(,)?
    })+) => {$(
        #[derive(Message)]
        struct $message {
            $($(#[prost(bytes = "vec", tag = $optional_tag)] $optional: Vec<u8>,)+)?
            $($(#[prost(bytes = "vec", tag = $required_tag)] $required: Vec<u8>,)+)?
            $($(#[prost(message, optional, tag = $time_tag)] $time: Option<Time>,)+)?
            $($(#[prost(message, optional, tag = $part_tag)] $part: Option<$of>,)+)?
            $($(#[prost(message, repeated, tag = $list_tag)] $list: Vec<$item>,)+)?
            $($(#[$attribute])+ $field: $type,)*
        }

        impl From<$message> for $whole {
            // Those that are read whole have no others.
            #[allow(clippy::needless_update)]
            fn from(part: $message) -> Self {
                Self {
                    $($($optional: text(part.$optional),)+)?
                    $($($required: readable(part.$required),)+)?
                    $($($time: time(part.$time),)+)?
                    $($($part: part.$part.map(Into::into),)+)?
                    $($($list: each(part.$list),)+)?
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

fn all<P: Into<W>, W>(parts: Vec<P>) -> Vec<W> {
    each(parts).unwrap_or_default()
}

fn given<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

messages! {
    ObjectMeta of meta::ObjectMeta {
        optional: name = "1", namespace = "3", uid = "5", resource_version = "6";
        times: creation_timestamp = "8", deletion_timestamp = "9";
        lists: owner_references = "13" of OwnerReference;
        #[prost(int64, tag = "7")]
        generation: i64 => given,
        #[prost(btree_map = "string, string", tag = "11")]
        labels: BTreeMap<String, String> => given,
        #[prost(btree_map = "string, bytes", tag = "12")]
        annotations: BTreeMap<String, Vec<u8>> => |annotations| given(texts(annotations)),
    }
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
        times: time_added = "4";
    }
    NodeSpec of v1::NodeSpec {
        lists: taints = "5" of Taint;
        #[prost(bool, tag = "4")]
        unschedulable: bool => given,
    }
    NodeCondition of v1::NodeCondition {
        required: type_ = "1", status = "2";
        times: last_heartbeat_time = "3", last_transition_time = "4";
    }
    NodeAddress of v1::NodeAddress {
        required: type_ = "1", address = "2";
    }
    NodeSystemInfo of v1::NodeSystemInfo {
        required: machine_id = "1", system_uuid = "2", boot_id = "3";
    }
    NodeStatus of v1::NodeStatus {
        parts: node_info = "7" of NodeSystemInfo;
        lists: conditions = "4" of NodeCondition, addresses = "5" of NodeAddress;
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
        lists: readiness_gates = "28" of PodReadinessGate;
        #[prost(message, repeated, tag = "2")]
        containers: Vec<Container> => all,
        #[prost(int64, optional, tag = "4")]
        termination_grace_period_seconds: Option<i64> => same,
    }
    PodCondition of v1::PodCondition {
        optional: reason = "5", message = "6";
        required: type_ = "1", status = "2";
        times: last_transition_time = "4";
    }
    ContainerStateWaiting of v1::ContainerStateWaiting {
        optional: reason = "1", message = "2";
    }
    ContainerStateRunning of v1::ContainerStateRunning {
        times: started_at = "1";
    }
    ContainerStateTerminated of v1::ContainerStateTerminated {
        optional: reason = "3", message = "4", container_id = "7";
        times: started_at = "5", finished_at = "6";
        #[prost(int32, tag = "1")]
        exit_code: i32 => same,
        #[prost(int32, tag = "2")]
        signal: i32 => given,
    }
    ContainerState of v1::ContainerState {
        parts: waiting = "1" of ContainerStateWaiting, running = "2" of ContainerStateRunning, terminated = "3" of ContainerStateTerminated;
    }
    ContainerStatus of v1::ContainerStatus {
        optional: container_id = "8";
        required: name = "1", image = "6", image_id = "7";
        parts: state = "2" of ContainerState, last_state = "3" of ContainerState;
        #[prost(bool, tag = "4")]
        ready: bool => same,
        #[prost(int32, tag = "5")]
        restart_count: i32 => same,
        #[prost(bool, optional, tag = "9")]
        started: Option<bool> => same,
    }
    PodStatus of v1::PodStatus {
        optional: phase = "1", message = "3", reason = "4";
        lists: conditions = "2" of PodCondition, container_statuses = "8" of ContainerStatus, init_container_statuses = "10" of ContainerStatus;
        #[prost(int64, tag = "17")]
        observed_generation: i64 => given,
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
                    metadata: object.metadata.map(Into::into).unwrap_or_default(),
                    spec: object.spec.map(Into::into),
                    status: object.status.map(Into::into),
                }
            }
        }
    )+};
}

objects! {
    Node of v1::Node { NodeSpec, NodeStatus }
    Pod of v1::Pod { PodSpec, PodStatus }
}
