//! `resourceFieldRef`: a container's limits and requests as numbers; no I/O.

use k8s_openapi::api::core::v1::{Container, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{EnvironmentError, NodeFacts};

/// Thousandths of the quantity's unit, rounded up; nothing for a text that is no quantity, or one too large to count.
fn milli(quantity: &str) -> Option<i128> {
    let digits = quantity.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+')).unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let value: i128 = format!("{whole}{fraction}").parse().ok()?;
    let billionths = value.checked_mul(billionths(suffix)?)?;
    let divisor = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?.checked_mul(1_000_000)?;
    Some(billionths.checked_add(divisor - 1)?.div_euclid(divisor))
}

/// Whether a text is a quantity that can be counted.
pub(super) fn is_quantity(text: &str) -> bool {
    milli(text).is_some()
}

/// What a suffix multiplies by, in billionths, so that the smallest one is a whole number.
fn billionths(suffix: &str) -> Option<i128> {
    const UNIT: i128 = 1_000_000_000;
    let decimal = |power: u32| 10_i128.checked_pow(power)?.checked_mul(UNIT);
    let binary = |power: u32| 1024_i128.checked_pow(power)?.checked_mul(UNIT);
    match suffix {
        "n" => Some(1),
        "u" => Some(1000),
        "m" => Some(1_000_000),
        "" => Some(UNIT),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        // `1e3`; a negative exponent down to billionths.
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            10_i128.checked_pow(u32::try_from(power.checked_add(9)?).ok()?)
        }
    }
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
    let of_node = || match (kind, name) {
        ("limits", "cpu") => node.cpu.clone(),
        ("limits", "memory") => node.memory.clone(),
        _ => "0".into(),
    };
    let quantity = own.and_then(|own| own.get(name).cloned()).unwrap_or_else(|| Quantity(of_node()));
    if quantity.0.is_empty() {
        return Err(EnvironmentError::NoCapacity(selector.resource.clone()));
    }
    let divisor = selector.divisor.as_ref().map_or("1", |divisor| divisor.0.as_str());
    let divisor = milli(divisor).filter(|divisor| *divisor > 0).unwrap_or(1000);
    let quantity = milli(&quantity.0).ok_or_else(unsupported)?;
    Ok(quantity.saturating_add(divisor - 1).div_euclid(divisor).to_string())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ResourceRequirements;

    use super::*;

    #[test]
    fn limits_round_up_and_default_to_the_nodes_capacity() {
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

    #[test]
    fn quantity_suffixes_are_read_and_invalid_quantities_refused() {
        for (text, expected) in [
            ("1", 1000),
            ("0.1", 100),
            ("-1", -1000),
            ("250m", 250),
            ("1n", 1),
            ("1001u", 2),
            ("1k", 1_000_000),
            ("1e3", 1_000_000),
            ("1E3", 1_000_000),
            ("5e-1", 500),
            ("1Ki", 1_024_000),
            ("1E", 1_000_000_000_000_000_000_000),
            ("1Ei", 1_152_921_504_606_846_976_000),
            ("8Ei", 9_223_372_036_854_775_808_000),
        ] {
            assert_eq!(milli(text), Some(expected), "{text}");
        }
        for text in ["", "x", "1x", "1e", "1e99", "1e-99", "--1", "1.2.3", &"9".repeat(60), &format!("0.{}", "1".repeat(60))] {
            assert_eq!(milli(text), None, "{text}");
        }
    }
}
