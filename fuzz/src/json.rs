//! JSON out of bytes, and changes to JSON that keep most of it.

use arbitrary::{Result, Unstructured};
use serde_json::{Map, Value};

/// Words of the API, and texts that parsers trip over.
const WORDS: &[&str] = &[
    "",
    "0",
    "-1",
    "100%",
    "150%",
    "1.5",
    "true",
    "null",
    "10s",
    "1h",
    "999999999999999999h",
    "0.0000001ms",
    "a/b",
    "a b",
    "\u{0}",
    "\n",
    "ü€𝄞",
    "...",
    "0a1b2c3d.1.Claimed.1",
    "0a1b2c3d.18446744073709551615.Updating.9223372036854775807.k",
    "2026-01-01T00:00:00Z",
    "2.99999999999",
    "All",
    "AtLeast",
    "NodeAffinity",
    "RollingUpdate",
    "Proceed",
    "Abort",
    "Exists",
    "In",
    "Gt",
    "NoExecute",
    "metadata.name",
    "::",
    "1Ki",
    "1e400",
    "ingress-daemonset-node",
    "ingressdaemonsets.mumoshu.github.io/token",
    "ingressdaemonsets.mumoshu.github.com/to-be-updated",
    "template",
    "spec",
    "metadata",
    "containers",
    "ports",
    "hostPort",
    "containerPort",
    "hostNetwork",
    "labels",
    "annotations",
    "nodeSelector",
    "tolerations",
    "affinity",
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
    "matchExpressions",
    "matchFields",
    "key",
    "operator",
    "values",
    "value",
    "name",
    "image",
    "interval",
    "timeout",
    "phase",
    "id",
    "time",
    "previous",
];
const NUMBERS: &[i64] = &[0, 1, -1, 2, 100, 65_535, 65_536, 1_000_000, i32::MAX as i64, i32::MIN as i64, 1 << 53, i64::MAX, i64::MIN];

/// A text.
pub fn text(u: &mut Unstructured<'_>) -> Result<String> {
    Ok(match u.int_in_range(0..=9)? {
        0 => u.arbitrary::<&str>()?.to_owned(),
        1 => "x".repeat(u.int_in_range(0..=400)?),
        _ => (*u.choose(WORDS)?).to_owned(),
    })
}

/// A number.
pub fn number(u: &mut Unstructured<'_>) -> Result<i64> {
    if u.ratio(1, 4)? { u.arbitrary() } else { u.choose(NUMBERS).copied() }
}

/// Any JSON of at most `depth` levels.
pub fn value(u: &mut Unstructured<'_>, depth: u8) -> Result<Value> {
    let kinds = if depth == 0 { 5 } else { 7 };
    Ok(match u.int_in_range(0..=kinds)? {
        0 => Value::Null,
        1 => u.arbitrary::<bool>()?.into(),
        2 => number(u)?.into(),
        3 => u.arbitrary::<u64>()?.into(),
        4 => u.arbitrary::<f64>()?.into(),
        5 => text(u)?.into(),
        6 => {
            let length = u.int_in_range(0..=4)?;
            (0..length).map(|_| value(u, depth - 1)).collect::<Result<Vec<_>>>()?.into()
        }
        _ => {
            let length = u.int_in_range(0..=4)?;
            let fields = (0..length).map(|_| Ok((text(u)?, value(u, depth - 1)?))).collect::<Result<Map<_, _>>>()?;
            Value::Object(fields)
        }
    })
}

/// Changes up to eight places of a document.
pub fn change(u: &mut Unstructured<'_>, document: &mut Value) -> Result<()> {
    for _ in 0..u.int_in_range(0..=8)? {
        change_once(u, document)?;
    }
    Ok(())
}

fn change_once(u: &mut Unstructured<'_>, document: &mut Value) -> Result<()> {
    let deeper = u.ratio(6, 7)?;
    match document {
        Value::Object(fields) if deeper && !fields.is_empty() => {
            let chosen = u.choose_index(fields.len())?;
            let Some(key) = fields.keys().nth(chosen).cloned() else { return Ok(()) };
            if u.ratio(1, 10)? {
                fields.remove(&key);
                return Ok(());
            }
            fields.get_mut(&key).map_or(Ok(()), |inner| change_once(u, inner))
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let chosen = u.choose_index(items.len())?;
            if u.ratio(1, 10)? {
                let copy = items[chosen].clone();
                items.push(copy);
                return Ok(());
            }
            change_once(u, &mut items[chosen])
        }
        Value::Object(fields) if u.ratio(1, 2)? => {
            fields.insert(text(u)?, value(u, 3)?);
            Ok(())
        }
        other => {
            *other = value(u, 3)?;
            Ok(())
        }
    }
}
