//! Objects that would take much memory once they are decoded lose their largest parts before that.
//!
//! Whoever may make objects makes them as large as the API server takes them. A text of small mappings takes some hundred times its length
//! when it is decoded. One that is nested deeper than a decoder goes, or has a time that is none for it, would break the watch of all its
//! kind. So answers are weighed as text. What lists and watches look like is known here, and that the spec of an `IngressDaemonSet` must be
//! there; nothing else of a kind is.

use http::{HeaderMap, Response, header};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper::body::{Body, Bytes};
use memchr::{memchr2, memmem};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};
use std::{borrow::Cow, collections::BTreeMap};
use tower::BoxError;

/// What a part of an object may take once it is decoded, in bytes by the estimate of [`Weight`]: several times what resources that are looked
/// after may have, and what anybody wants of other kinds.
const MOST: usize = 8 << 20;
/// The same of each field of a spec that is longer as a whole, and of each field of the metadata: labels, annotations, owners.
const MOST_OF_FIELD: usize = MOST / 16;
/// The group whose status the operator alone writes: that of a resource names each node that is out, of thousands.
const OUR_GROUP: &str = "\"ingressdaemonsets.mumoshu.github.io/";
/// Fields that say what an object, or an answer instead of it, is.
const IDENTITY: [&str; 5] = ["apiVersion", "kind", "reason", "message", "code"];
/// What such a field may take once it is decoded, in bytes.
const MOST_OF_IDENTITY: usize = 16 << 10;
/// Fields of its metadata that tell an object from others. A watch that begins with a list needs no more of a bookmark either.
const NAMES: [&str; 4] = ["name", "namespace", "uid", "resourceVersion"];
/// How many conditions of an object are read.
const CONDITIONS: usize = 256;
/// How long the type or the status of a condition may be as it is written, in bytes. A type has at most 316 characters.
const WORD: usize = 512;
/// How the time of an edit begins, as the API server writes it.
const TIME: &[u8] = b"\"time\":\"";
/// How deep an object may be nested. `serde_json` gives up at 128, and events and lists are around it.
const DEEPEST: usize = 100;
/// Of this capacity a buffer is kept from object to object, in bytes.
const BUFFER: usize = 64 << 10;

/// What text of JSON takes once it is decoded, as an estimate: a mapping of one entry is a node of a B-tree with room for eleven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weight {
    bytes: usize,
    mappings: usize,
    /// Lists, and values that follow another.
    others: usize,
    depth: usize,
}

impl Weight {
    fn of(text: &[u8]) -> Self {
        let mut weight = Self { bytes: text.len(), ..Self::default() };
        let (mut depth, mut quotes, mut next) = (0_usize, Quotes::default(), 0);
        while let Some(&byte) = text.get(next) {
            if quotes.quoted {
                next += quotes.skip(&text[next..]);
                continue;
            }
            next += 1;
            if quotes.cover(byte) {
                continue;
            }
            match byte {
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            weight.count(byte, depth);
        }
        weight
    }

    /// Takes in a byte outside of strings, so deep in the text.
    fn count(&mut self, byte: u8, depth: usize) {
        match byte {
            b'{' => self.mappings += 1,
            b'[' | b',' => self.others += 1,
            _ => {}
        }
        self.depth = self.depth.max(depth);
    }

    fn memory(self) -> usize {
        self.bytes + 1024 * self.mappings + 128 * self.others
    }

    fn is_within(self, most: usize) -> bool {
        self.memory() <= most && self.depth <= DEEPEST
    }
}

/// Whether a place in a text is inside of a string.
#[derive(Debug, Default)]
struct Quotes {
    quoted: bool,
    escaped: bool,
}

impl Quotes {
    /// The next byte is part of a string, its quotes included.
    fn cover(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.quoted => self.escaped = true,
            b'"' => {
                self.quoted = !self.quoted;
                return true;
            }
            _ => {}
        }
        self.quoted
    }

    /// The same for the bytes that follow in a string: up to its end, or to what escapes another one. How many these are.
    fn skip(&mut self, text: &[u8]) -> usize {
        if std::mem::take(&mut self.escaped) {
            return 1;
        }
        let Some(at) = memchr2(b'"', b'\\', text) else { return text.len() };
        (self.quoted, self.escaped) = (text[at] != b'"', text[at] != b'"');
        at + 1
    }
}

/// What is read of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    /// All that does not take too much.
    All,
    /// Which one it is, and types and statuses of its conditions.
    Conditions,
}

/// An answer as it comes in, piece by piece.
#[derive(Debug)]
struct Pieces {
    /// Of objects of lists and events.
    read: Read,
    quotes: Quotes,
    depth: usize,
    /// The last string of the outermost mapping, or of the outer mappings of an object: the name of what follows.
    name: Vec<u8>,
    /// The field of an object that is under way.
    field: Vec<u8>,
    /// How deep the field is in the answer that comes in now and that nobody reads.
    unread: Option<usize>,
    in_items: bool,
    /// Its text so far, and what of it weighs besides its length.
    object: Vec<u8>,
    weight: Weight,
    /// Where an object is under way: how deep it is in the answer. The outermost mapping is taken for one until it shows that it is a list
    /// or an event.
    object_depth: Option<usize>,
}

impl Pieces {
    fn of(read: Read) -> Self {
        Self {
            read,
            quotes: Quotes::default(),
            depth: 0,
            name: Vec::new(),
            field: Vec::new(),
            unread: None,
            in_items: false,
            object: Vec::new(),
            weight: Weight::default(),
            object_depth: None,
        }
    }

    /// What of the answer may go on after this piece. An object goes on as a whole.
    fn feed(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut passed = Vec::with_capacity(piece.len());
        let (mut from, mut next) = (0, 0);
        while let Some(&byte) = piece.get(next) {
            if self.quotes.quoted && !self.has_names() {
                next += self.quotes.skip(&piece[next..]);
                continue;
            }
            let at = next;
            next += 1;
            if self.quotes.cover(byte) {
                if self.has_names() {
                    self.take_name(byte);
                }
                continue;
            }
            match byte {
                b'{' | b'[' => {
                    self.depth += 1;
                    if self.has_objects() && self.object_depth == Some(1) {
                        // It is a list, or an event.
                        passed.append(&mut self.object);
                        self.object_depth = None;
                    }
                    if byte == b'{' && self.object_depth.is_none() && self.is_object() {
                        passed.extend_from_slice(&piece[from..at]);
                        from = at;
                        self.object_depth = Some(self.depth);
                        self.weight = Weight::default();
                    }
                    self.weigh(byte);
                    self.in_items |= byte == b'[' && self.depth == 2 && self.name == b"items";
                }
                b'}' | b']' => {
                    if self.unread == Some(self.depth) {
                        (self.unread, from) = (None, at);
                    }
                    if self.object_depth == Some(self.depth) {
                        self.object.extend_from_slice(&piece[from..=at]);
                        from = at + 1;
                        passed.extend_from_slice(&self.left());
                        self.object.clear();
                        self.object.shrink_to(BUFFER);
                        self.object_depth = None;
                    }
                    self.in_items &= self.depth != 2;
                    self.depth = self.depth.saturating_sub(1);
                }
                b':' if self.begins_unread() => {
                    // Its text is not kept: specs and annotations that another makes as large as the API server takes them come in for
                    // many gates at once.
                    self.object.extend_from_slice(&piece[from..=at]);
                    self.object.extend_from_slice(b"null");
                    self.unread = Some(self.depth);
                }
                b',' if self.unread == Some(self.depth) => (self.unread, from) = (None, at),
                _ => self.weigh(byte),
            }
        }
        let rest = if self.unread.is_some() { &[][..] } else { &piece[from..] };
        if self.object_depth.is_some() {
            self.object.extend_from_slice(rest);
        } else {
            passed.extend_from_slice(rest);
        }
        // What reads a stream keeps the last piece until the next one comes.
        passed.shrink_to_fit();
        passed
    }

    /// What is left of the object that has come in.
    fn left(&self) -> Cow<'_, [u8]> {
        // An answer that is one object, such as a list of kinds, is nobody's.
        match self.read {
            Read::Conditions if self.depth > 1 => conditions(&self.object),
            _ => trimmed(&self.object, Weight { bytes: self.object.len(), ..self.weight }),
        }
    }

    /// Strings are names here, or values beside them.
    fn has_names(&self) -> bool {
        self.depth == 1 || self.unread.is_none() && self.depth_of_field().is_some()
    }

    /// How deep in an object of which conditions are read: 1 in its outermost mapping, 2 in a field.
    fn depth_of_field(&self) -> Option<usize> {
        let begins = self.object_depth.filter(|begins| self.read == Read::Conditions && *begins > 1)?;
        Some(self.depth + 1 - begins).filter(|depth| *depth <= 2)
    }

    /// The value that begins is of a field that nobody reads.
    fn begins_unread(&mut self) -> bool {
        let is_in = |fields: &[&str]| fields.iter().any(|field| field.as_bytes() == self.name);
        match self.depth_of_field().filter(|_| self.unread.is_none()) {
            Some(1) if is_in(&IDENTITY) || is_in(&["metadata", "status"]) => {
                self.field.clone_from(&self.name);
                false
            }
            Some(1) => true,
            Some(_) if self.field == b"metadata" => !is_in(&NAMES),
            Some(_) => self.field == b"status" && !is_in(&["conditions"]),
            None => false,
        }
    }

    fn weigh(&mut self, byte: u8) {
        if let Some(begins) = self.object_depth {
            self.weight.count(byte, self.depth + 1 - begins);
        }
    }

    fn take_name(&mut self, byte: u8) {
        match (byte, self.quotes.quoted) {
            (b'"', true) => self.name.clear(),
            (b'"', false) => {}
            // No name that is asked for is longer.
            _ if self.name.len() < 16 => self.name.push(byte),
            _ => {}
        }
    }

    /// What begins is the object of an event, or the items of a list.
    fn has_objects(&self) -> bool {
        self.depth == 2 && (self.name == b"object" || self.name == b"items")
    }

    /// The mapping that begins is an object: that of an event, one of a list, or all of the answer.
    fn is_object(&self) -> bool {
        match self.depth {
            1 => true,
            2 => self.name == b"object",
            3 => self.in_items,
            _ => false,
        }
    }
}

/// An object of this weight without what would take too much.
fn trimmed(text: &[u8], weight: Weight) -> Cow<'_, [u8]> {
    let times = memmem::find_iter(text, TIME).map(|at| &text[at + TIME.len()..]);
    if weight.is_within(MOST) && times.into_iter().all(decodes) {
        return Cow::Borrowed(text);
    }
    // What is no JSON goes on: whoever decodes it says so.
    cut(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Of an object no more than which one it is, and types and statuses of its conditions.
fn conditions(text: &[u8]) -> Cow<'_, [u8]> {
    // What is no JSON goes on: whoever decodes it says so.
    let Ok(mut fields) = raw_fields(text) else { return Cow::Borrowed(text) };
    let (metadata, status) = (fields.remove("metadata"), fields.remove("status"));
    fields.retain(|name, field| IDENTITY.contains(&name.as_str()) && fits(field, MOST_OF_IDENTITY));
    if let Some(mut kept) = metadata.as_deref().and_then(|metadata| raw_fields(metadata.get().as_bytes()).ok()) {
        kept.retain(|name, field| NAMES.contains(&name.as_str()) && fits(field, MOST_OF_IDENTITY));
        fields.extend(to_raw_value(&kept).ok().map(|kept| ("metadata".to_owned(), Cow::Owned(kept))));
    }
    let listed = status.as_deref().map(|status| raw_fields(status.get().as_bytes()));
    match (listed, status.clone()) {
        (Some(Ok(mut listed)), _) => {
            let listed = listed.remove("conditions").filter(|listed| fits(listed, MOST));
            let listed = listed.as_deref().and_then(|listed| serde_json::from_str::<Vec<&RawValue>>(listed.get()).ok());
            let kept = listed.into_iter().flatten().filter_map(|condition| {
                let mut fields = raw_fields(condition.get().as_bytes()).ok()?;
                fields.retain(|name, field| ["type", "status"].contains(&name.as_str()) && field.get().len() <= WORD);
                // One that lacks either says nothing.
                (fields.len() == 2).then_some(fields)
            });
            let kept = to_raw_value(&BTreeMap::from([("conditions", kept.take(CONDITIONS).collect::<Vec<_>>())])).ok();
            fields.extend(kept.map(|kept| ("status".to_owned(), Cow::Owned(kept))));
        }
        // That of an answer which says what went wrong is a word.
        (_, Some(word)) if fits(&word, MOST_OF_IDENTITY) => drop(fields.insert("status".to_owned(), word)),
        _ => {}
    }
    serde_json::to_vec(&fields).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Fields by name, as they are written.
type Fields<'t> = BTreeMap<String, Cow<'t, RawValue>>;

/// A time that begins so can be decoded. The API server takes the time of an edit with an offset and writes it without, as in the year 10000
/// or -1; `jiff`, which decodes times, ends within the last two days of the year 9999.
fn decodes(time: &[u8]) -> bool {
    let has_year = time.split(|byte| *byte == b'-').next().is_some_and(|year| year.len() == 4 && year.iter().all(u8::is_ascii_digit));
    has_year && !time.starts_with(b"9999-12-3")
}

fn cut(text: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut fields = raw_fields(text)?;
    let says = |name: &str, begins: &str| fields.get(name).is_some_and(|field| field.get().starts_with(begins));
    let (is_resource, is_ours) = (says("kind", "\"IngressDaemonSet\""), says("apiVersion", OUR_GROUP));
    let mut shorter = Fields::new();
    if let Some(metadata) = fields.get("metadata") {
        let mut kept = raw_fields(metadata.get().as_bytes())?;
        if let Some(managed) = kept.get("managedFields") {
            let entries = edits(managed.get())?;
            kept.insert("managedFields".to_owned(), Cow::Owned(entries));
        }
        kept.retain(|_, field| fits(field, MOST_OF_FIELD));
        shorter.insert("metadata".to_owned(), Cow::Owned(to_raw_value(&kept)?));
    }
    if let Some(spec) = fields.get("spec").filter(|spec| !fits(spec, MOST)) {
        let weight = Weight::of(spec.get().as_bytes());
        let mut kept = raw_fields(spec.get().as_bytes())?;
        kept.retain(|_, field| fits(field, MOST_OF_FIELD));
        if is_resource {
            kept.insert("template".to_owned(), Cow::Owned(to_raw_value(&[weight.bytes, weight.mappings])?));
        }
        shorter.insert("spec".to_owned(), Cow::Owned(to_raw_value(&kept)?));
    }
    fields.extend(shorter);
    fields.retain(|name, field| is_ours && name == "status" || fits(field, MOST));
    serde_json::to_vec(&fields)
}

fn fits(field: &RawValue, most: usize) -> bool {
    Weight::of(field.get().as_bytes()).is_within(most)
}

/// Who wrote last, and when: without the fields that each manages, which are as long as the object, and without times that are none.
fn edits(managed: &str) -> serde_json::Result<Box<RawValue>> {
    let mut entries: Vec<BTreeMap<String, &RawValue>> = serde_json::from_str(managed)?;
    entries.retain(|entry| entry.get("time").and_then(|time| time.get().strip_prefix('"')).is_none_or(|time| decodes(time.as_bytes())));
    for entry in &mut entries {
        entry.remove("fieldsV1");
    }
    to_raw_value(&entries)
}

fn raw_fields(text: &[u8]) -> serde_json::Result<Fields<'_>> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(text)?;
    Ok(fields.into_iter().map(|(name, field)| (name, Cow::Borrowed(field))).collect())
}

/// The length of the spec that was left out, and the number of its mappings, if this stands for its template. The API server takes mappings
/// alone for templates.
pub fn left_out(template: &Value) -> Option<(usize, usize)> {
    let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
    match template.as_array()?.as_slice() {
        [bytes, mappings] => Some((number(bytes)?, number(mappings)?)),
        _ => None,
    }
}

/// Somebody else's JSON takes no more than an object may.
pub fn is_light(text: &[u8]) -> bool {
    Weight::of(text).is_within(MOST)
}

/// The same answer, whose objects take no more than they may.
pub fn trim<B>(response: Response<B>) -> Response<UnsyncBoxBody<Bytes, BoxError>>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    fed_to(Pieces::of(Read::All), response)
}

/// The same answer, of whose objects nothing is left but which they are, and types and statuses of their conditions.
pub fn trim_to_conditions<B>(response: Response<B>) -> Response<UnsyncBoxBody<Bytes, BoxError>>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    fed_to(Pieces::of(Read::Conditions), response)
}

fn fed_to<B>(mut answer: Pieces, response: Response<B>) -> Response<UnsyncBoxBody<Bytes, BoxError>>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (mut head, body) = response.into_parts();
    let body = body.map_err(Into::into);
    if !is_json(&head.headers) {
        return Response::from_parts(head, body.boxed_unsync());
    }
    head.headers.remove(header::CONTENT_LENGTH);
    // Of an answer that breaks off in the midst of an object the rest is missing as it was before.
    let body = body.map_frame(move |frame| frame.map_data(|piece| answer.feed(&piece).into()));
    Response::from_parts(head, body.boxed_unsync())
}

fn is_json(headers: &HeaderMap) -> bool {
    let type_ = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    type_.is_some_and(|type_| type_.starts_with("application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The answer in pieces of this length.
    fn fed(read: Read, answer: &str, length: usize) -> String {
        let mut state = Pieces::of(read);
        let passed: Vec<_> = answer.as_bytes().chunks(length).flat_map(|piece| state.feed(piece)).collect();
        String::from_utf8(passed).unwrap()
    }

    /// The same text for pieces of any length.
    fn whole(answer: &str) -> String {
        left(Read::All, answer)
    }

    fn left(read: Read, answer: &str) -> String {
        let whole = fed(read, answer, answer.len());
        for length in [1, 7, 4096] {
            assert_eq!(fed(read, answer, length), whole, "{length}");
        }
        whole
    }

    fn resource(spec: &Value) -> Value {
        json!({
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
            "metadata": { "name": "edge", "namespace": "web", "uid": "u", "labels": { "a": "b" }, "managedFields": [{ "manager": "kubectl" }] },
            "spec": spec, "status": { "observedGeneration": 3 },
        })
    }

    fn event(object: &Value) -> String {
        format!("{}\n", json!({ "type": "ADDED", "object": object }))
    }

    fn list(objects: &[Value]) -> String {
        json!({ "kind": "IngressDaemonSetList", "metadata": { "resourceVersion": "9", "continue": "object" }, "items": objects })
            .to_string()
    }

    fn many_mappings() -> Value {
        json!({ "template": { "spec": { "x": vec![json!({ "a": 0 }); 10_000] } } })
    }

    fn deep(levels: usize) -> Value {
        json!({ "template": (0..levels).fold(json!(1), |inner, _| json!({ "a": inner })) })
    }

    #[test]
    fn what_is_small_goes_on_as_it_is() {
        let small = resource(&json!({ "template": { "a\"{[,\\": ["}]\\\"", {}, [], "é\u{1F600}\n"] } }));
        let bookmark = "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Node\",\"metadata\":{\"resourceVersion\":\"7\"}}}\n";
        let status =
            "{\"kind\":\"Status\",\"status\":\"Failure\",\"message\":\"items\",\"details\":{\"causes\":[{\"object\":{}}]},\"code\":410}";
        let alone = small.to_string();
        for answer in [
            event(&small) + &event(&small) + bookmark,
            list(&[small.clone(), small]),
            list(&[]),
            status.into(),
            alone,
            "ok".into(),
            "]}".into(),
        ] {
            assert_eq!(whole(&answer), answer);
        }
    }

    #[test]
    fn only_the_oversized_part_of_a_spec_is_left_out() {
        let small = resource(&json!({ "template": {} }));
        for mut spec in [many_mappings(), deep(200), json!({ "template": { "x": vec![0; 70_000] } })] {
            spec["paused"] = true.into();
            let large = resource(&spec);
            let length = spec.to_string().len();
            // A list, a watch, and three answers of one object each.
            let alone = [&small, &large, &small].map(Value::to_string).join("\n");
            for answer in [event(&small) + &event(&large) + &event(&small), list(&[small.clone(), large.clone(), small.clone()]), alone] {
                let text = whole(&answer);
                let objects: Vec<Value> = match serde_json::from_str::<Value>(&text) {
                    Ok(list) => list["items"].as_array().unwrap().clone(),
                    Err(_) => text
                        .lines()
                        .map(|line| serde_json::from_str::<Value>(line).unwrap())
                        .map(|line| line.get("object").unwrap_or(&line).clone())
                        .collect(),
                };
                assert_eq!((&objects[0], &objects[2], objects.len()), (&small, &small, 3));
                assert_eq!((&objects[1]["metadata"]["labels"]["a"], &objects[1]["status"]["observedGeneration"]), (&json!("b"), &json!(3)));
                assert_eq!(objects[1]["metadata"]["managedFields"], json!([{ "manager": "kubectl" }]));
                assert_eq!(objects[1]["spec"]["paused"], json!(true), "what is short of it stays");
                assert_eq!(left_out(&objects[1]["spec"]["template"]).map(|(bytes, _)| bytes), Some(length));
            }
        }
        assert_eq!(left_out(&json!({})).or(left_out(&Value::Null)).or(left_out(&json!([1]))), None);
    }

    #[test]
    fn oversized_metadata_is_left_out_field_by_field() {
        let labels: BTreeMap<_, _> = (0..100_000).map(|number| (format!("l{number}"), "x")).collect();
        let managed = json!([{ "manager": "x", "time": "2026-11-28T00:00:00Z", "fieldsV1": deep(200) }]);
        let large = json!({ "metadata": { "name": "a", "labels": labels, "annotations": { "k": "v" }, "managedFields": managed }, "spec": { "replicas": 2 } });
        let kept: Value = serde_json::from_str(&whole(&event(&large))).unwrap();
        let managed = json!([{ "manager": "x", "time": "2026-11-28T00:00:00Z" }]);
        let metadata = json!({ "name": "a", "annotations": { "k": "v" }, "managedFields": managed });
        assert_eq!(kept["object"], json!({ "metadata": metadata, "spec": { "replicas": 2 } }));
    }

    /// One that cannot be decoded would end the watch of its kind. The API server makes the latter two of times with an offset.
    #[test]
    fn an_edit_at_an_undecodable_time_is_left_out() {
        let edit = |time: &str| json!({ "manager": "x", "operation": "Update", "apiVersion": "v1", "time": time });
        let object = |edits: &[Value]| json!({ "kind": "Service", "metadata": { "name": "a", "managedFields": edits }, "spec": {} });
        let good = edit("2026-11-28T00:00:00Z");
        for time in ["9999-12-31T23:59:59Z", "10000-01-01T23:58:59Z", "-0001-12-31T00:01:00Z"] {
            let bad = edit(time);
            let text = whole(&event(&object(&[good.clone(), bad.clone()])));
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["object"], object(std::slice::from_ref(&good)), "{time}");
            let decoded = serde_json::from_value::<k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry>(bad);
            assert!(decoded.is_err(), "{time} needs not be left out any more");
        }
    }

    #[test]
    fn only_conditions_are_left_of_what_a_gate_names() {
        let left = |answer: &str| serde_json::from_str::<Value>(&left(Read::Conditions, answer)).unwrap();
        let large = "x\\\",}".repeat(20_000);
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "annotations": { "a": large, "name": large }, "name": "a", "namespace": "web", "uid": "u", "resourceVersion": "7",
                "labels": null, "generation": 3, "finalizers": ["a,b"],
            },
            "data": large, "spec": { "containers": [{ "name": large }], "status": {} },
            "status": {
                "phase": "Running", "message": large,
                "conditions": [
                    { "type": "Ready", "status": "True", "message": large, "lastTransitionTime": "2026-11-28T00:00:00Z" },
                    { "type": large, "status": "True" }, {}, null, "x", ["x"],
                ],
            },
        });
        let kept = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "a", "namespace": "web", "uid": "u", "resourceVersion": "7" },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        assert_eq!(left(&event(&object)), json!({ "type": "ADDED", "object": kept }));
        let list = left(&list(&[object.clone(), object.clone()]));
        assert_eq!((&list["items"], &list["metadata"]["continue"]), (&json!([kept, kept]), &json!("object")));
        let bookmark = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "resourceVersion": "9" } });
        assert_eq!(left(&event(&bookmark))["object"], bookmark);
        for (status, kept) in [
            (json!({ "conditions": (0..1000).map(|number| json!({ "type": number, "status": "True" })).collect::<Vec<_>>() }), CONDITIONS),
            (json!({ "conditions": vec![json!({ "type": "T", "status": "True", "message": "x".repeat(32_000) }); 20] }), 20),
            (json!({ "conditions": [{ "type": "T" }, { "status": "True" }] }), 0),
            (json!({ "conditions": vec![json!({}); 10_000] }), 0),
            (json!({ "conditions": "x" }), 0),
            (json!({ "conditions": null }), 0),
            (json!({}), 0),
        ] {
            let left = left(&event(&json!({ "metadata": {}, "status": status })));
            assert_eq!(left["object"]["status"]["conditions"].as_array().unwrap().len(), kept, "{}", left["object"]);
        }
        // Neither an error nor a list of kinds is such an object.
        let error =
            json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410 });
        assert_eq!(left(&event(&error))["object"], error);
        let kinds = json!({ "kind": "APIResourceList", "groupVersion": "v1", "resources": [{ "name": "pods", "kind": "Pod" }] });
        assert_eq!(left(&kinds.to_string()), kinds);
        // What nobody reads is not even kept while it comes in.
        let mut state = Pieces::of(Read::Conditions);
        let text = event(&object);
        let mut most = 0;
        for piece in text.as_bytes().chunks(1000) {
            state.feed(piece);
            most = most.max(state.object.len());
        }
        assert!(most < 3 * large.len(), "{most}: two conditions are long");
    }

    /// A status is what controllers write: a resource of thousands of nodes has a long one.
    #[test]
    fn a_status_of_thousands_of_nodes_stays() {
        let grants: BTreeMap<_, _> =
            (0..3000).map(|node| (format!("n{node}"), json!({ "a": {}, "b": [{}, {}], "c": { "d": "e" } }))).collect();
        let mut object = resource(&json!({ "template": {} }));
        object["status"] = json!({ "rollout": { "grants": grants } });
        assert!(!Weight::of(object.to_string().as_bytes()).is_within(MOST));
        object["metadata"].as_object_mut().unwrap().remove("managedFields");
        let kept: Value = serde_json::from_str(&whole(&event(&object))).unwrap();
        assert_eq!(kept["object"], object);
    }
}
