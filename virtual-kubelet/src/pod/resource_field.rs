//! `resourceFieldRef`: a container's limits and requests as numbers; no I/O.

use k8s_openapi::api::core::v1::{Container, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::environment::{EnvironmentError, NodeFacts};

/// Thousandths of the quantity's unit.
fn milli(quantity: &str) -> Option<i128> {
    let digits = quantity.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+')).unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at(digits);
    let thousandths: i128 = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1000 * 1000,
        "M" => 1000 * 1000_i128.pow(2),
        "G" => 1000 * 1000_i128.pow(3),
        "T" => 1000 * 1000_i128.pow(4),
        "Ki" => 1000 * 1024,
        "Mi" => 1000 * 1024_i128.pow(2),
        "Gi" => 1000 * 1024_i128.pow(3),
        "Ti" => 1000 * 1024_i128.pow(4),
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let value: i128 = format!("{whole}{fraction}").parse().ok()?;
    Some((value * thousandths + scale - 1).div_euclid(scale))
}

/// The number that `selector` asks for, divided and rounded up. Without a limit it is what the node has.
pub(super) fn value(container: &Container, selector: &ResourceFieldSelector, node: &NodeFacts) -> Result<String, EnvironmentError> {
    let unsupported = || EnvironmentError::UnsupportedResource(selector.resource.clone());
    let (kind, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let resources = container.resources.clone().unwrap_or_default();
    let own = match kind {
        "limits" => resources.limits,
        "requests" => resources.requests,
        _ => return Err(unsupported()),
    };
    let fallback = || match (kind, name) {
        ("limits", "cpu") => Some(Quantity(node.cpu.clone())),
        ("limits", "memory") => Some(Quantity(node.memory.clone())),
        _ => Some(Quantity("0".into())),
    };
    let quantity = own.and_then(|own| own.get(name).cloned()).or_else(fallback).ok_or_else(unsupported)?;
    let divisor = selector.divisor.as_ref().map_or("1", |divisor| divisor.0.as_str());
    let divisor = milli(divisor).filter(|divisor| *divisor > 0).unwrap_or(1000);
    let quantity = milli(&quantity.0).ok_or_else(unsupported)?;
    Ok(((quantity + divisor - 1).div_euclid(divisor)).to_string())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ResourceRequirements;

    use super::*;

    #[test]
    fn limits_are_divided_rounded_up_and_default_to_what_the_node_has() {
        let limits = [("memory".to_owned(), Quantity("100Mi".into()))].into();
        let resources = ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() };
        let container = Container { resources: Some(resources), ..Container::default() };
        let node = NodeFacts { cpu: "8".into(), ..NodeFacts::default() };
        let read = |resource: &str, divisor: &str| {
            let selector =
                ResourceFieldSelector { resource: resource.into(), divisor: Some(Quantity(divisor.into())), container_name: None };
            value(&container, &selector, &node).unwrap()
        };
        assert_eq!(read("limits.memory", "1Mi"), "100");
        assert_eq!(read("limits.memory", "1M"), "105");
        assert_eq!(read("limits.cpu", "1m"), "8000");
        assert_eq!(read("requests.cpu", "0"), "0");
    }
}
