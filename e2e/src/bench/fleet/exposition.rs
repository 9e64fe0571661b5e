//! What is read from metrics in Prometheus' text format: requests by kind, and quantiles of histograms.

use std::collections::BTreeMap;

/// One line.
#[derive(Debug, PartialEq)]
struct Sample<'a> {
    name: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    value: f64,
}

impl Sample<'_> {
    fn label(&self, name: &str) -> &str {
        self.labels.get(name).copied().unwrap_or_default()
    }
}

/// Values with escapes stay as they are written: none that is compared has any.
fn sample(line: &str) -> Option<Sample<'_>> {
    let mut labels = BTreeMap::new();
    let name_ends = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_ends);
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while let Some((label, after)) = rest.trim_start_matches(',').split_once("=\"") {
            if label.contains('}') {
                break;
            }
            let mut escaped = false;
            let end = after.find(|character| {
                let closes = character == '"' && !escaped;
                escaped = character == '\\' && !escaped;
                closes
            })?;
            labels.insert(label, after.get(..end)?);
            rest = after.get(end + 1..)?;
            if rest.starts_with('}') {
                break;
            }
        }
        rest = rest.split_once('}')?.1;
    }
    Some(Sample { name, labels, value: rest.split_whitespace().next()?.parse().ok()? })
}

fn samples<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = Sample<'a>> {
    text.lines().filter(move |line| line.starts_with(name)).filter_map(sample).filter(move |sample| sample.name == name)
}

/// The sum of a counter over all samples that have these labels.
pub fn sum(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    samples(text, name).filter(|sample| labels.iter().all(|(label, value)| sample.label(label) == *value)).map(|sample| sample.value).sum()
}

/// Requests by verb and resource, such as `PATCH pods/status`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests(BTreeMap<String, f64>);

impl Requests {
    /// What an API server has answered so far about nodes, leases and pods.
    pub fn of_api_server(text: &str) -> Self {
        let mut requests = Self::default();
        for sample in samples(text, "apiserver_request_total") {
            let (resource, subresource) = (sample.label("resource"), sample.label("subresource"));
            if !["nodes", "leases", "pods"].contains(&resource) {
                continue;
            }
            let slash = if subresource.is_empty() { "" } else { "/" };
            requests.add(&format!("{} {resource}{slash}{subresource}", sample.label("verb")), sample.value);
        }
        requests
    }

    /// Counts `number` more of a kind.
    pub fn add(&mut self, kind: &str, number: f64) {
        *self.0.entry(kind.to_owned()).or_default() += number;
    }

    /// Those that are not among `others`.
    #[must_use]
    pub fn without(&self, others: &Self) -> Self {
        let less = |(kind, count): (&String, &f64)| (kind.clone(), count - others.0.get(kind).copied().unwrap_or_default());
        Self(self.0.iter().map(less).filter(|(_, count)| *count > 0.0).collect())
    }

    /// Renewals of leases.
    pub fn renewals(&self) -> f64 {
        ["PUT leases", "PATCH leases", "APPLY leases"].iter().filter_map(|kind| self.0.get(*kind)).sum()
    }

    /// The kinds and their counts, the most frequent first.
    pub fn by_count(&self) -> Vec<(&str, f64)> {
        let mut kinds: Vec<_> = self.0.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
        kinds
    }
}

/// A histogram: upper bounds and cumulative counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram(Vec<(f64, f64)>);

impl Histogram {
    /// The histogram `name`, all its label sets together.
    pub fn read(text: &str, name: &str) -> Self {
        let bucket = format!("{name}_bucket");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for sample in samples(text, &bucket) {
            // `+Inf` parses as infinity.
            let Ok(bound) = sample.label("le").parse::<f64>() else { continue };
            match buckets.iter_mut().find(|(known, _)| known.total_cmp(&bound).is_eq()) {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self(buckets)
    }

    /// What was observed after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |bound: f64| earlier.0.iter().find(|(known, _)| known.total_cmp(&bound).is_eq()).map_or(0.0, |(_, count)| *count);
        Self(self.0.iter().map(|(bound, count)| (*bound, count - before(*bound))).collect())
    }

    /// The quantile `q`, as Prometheus estimates it: evenly spread within a bucket. None without observations.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let total = self.0.last().map(|(_, count)| *count).filter(|total| *total > 0.0)?;
        let wanted = q * total;
        let (mut bound_below, mut count_below) = (0.0, 0.0);
        for (bound, count) in &self.0 {
            if *count >= wanted {
                if bound.is_infinite() {
                    return Some(bound_below);
                }
                let within = if *count > count_below { (wanted - count_below) / (count - count_below) } else { 1.0 };
                return Some(bound_below + (bound - bound_below) * within);
            }
            (bound_below, count_below) = (*bound, *count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP apiserver_request_total Counter
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 7
apiserver_request_total{code="200",group="",resource="pods",subresource="status",verb="PATCH"} 5
apiserver_request_total{code="404",group="",resource="pods",subresource="status",verb="PATCH"} 2
apiserver_request_total{code="200",group="coordination.k8s.io",resource="leases",subresource="",verb="PUT"} 1.5e+03
apiserver_request_total{code="200",group="",resource="secrets",subresource="",verb="GET"} 9
apiserver_flowcontrol_dispatched_requests_total{flow_schema="fleet",priority_level="exempt"} 12
odd{text="a \"quoted\", } text",verb="x"} 3
plain 4
wait_bucket{le="0.1"} 50
wait_bucket{le="0.2"} 90
wait_bucket{le="+Inf"} 100
wait_count 100
"#;

    fn close(a: Option<f64>, b: f64) -> bool {
        a.is_some_and(|a| (a - b).abs() < 1e-9)
    }

    #[test]
    fn requests_of_one_kind_count_together_whatever_the_answer_was() {
        let requests = Requests::of_api_server(TEXT);
        assert_eq!(requests.by_count(), [("PUT leases", 1500.0), ("PATCH pods/status", 7.0), ("POST pods", 7.0)]);
        assert!(close(Some(requests.renewals()), 1500.0));
    }

    #[test]
    fn requests_of_the_driver_are_subtracted_from_the_count() {
        let mut driver = Requests::default();
        driver.add("POST pods", 7.0);
        driver.add("PATCH pods/status", 1.0);
        assert_eq!(Requests::of_api_server(TEXT).without(&driver).by_count(), [("PUT leases", 1500.0), ("PATCH pods/status", 6.0)]);
    }

    #[test]
    fn a_label_may_contain_quotes_commas_and_braces() {
        assert!(close(Some(sum(TEXT, "odd", &[("verb", "x")])), 3.0));
    }

    #[test]
    fn a_counter_is_chosen_by_its_labels() {
        let name = "apiserver_flowcontrol_dispatched_requests_total";
        assert!(close(Some(sum(TEXT, name, &[("flow_schema", "fleet")])), 12.0));
        assert!(close(Some(sum(TEXT, name, &[("flow_schema", "exempt")])), 0.0));
        assert!(close(Some(sum(TEXT, "plain", &[])), 4.0));
    }

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let histogram = Histogram::read(TEXT, "wait");
        assert!(close(histogram.quantile(0.5), 0.1));
        assert!(close(histogram.quantile(0.7), 0.15));
    }

    #[test]
    fn a_quantile_beyond_the_last_bound_is_that_bound() {
        assert!(close(Histogram::read(TEXT, "wait").quantile(0.99), 0.2));
    }

    #[test]
    fn what_was_observed_earlier_does_not_count() {
        let earlier = Histogram::read("wait_bucket{le=\"0.1\"} 50\nwait_bucket{le=\"0.2\"} 50\nwait_bucket{le=\"+Inf\"} 50\n", "wait");
        let later = Histogram::read(TEXT, "wait").since(&earlier);
        assert!(close(later.quantile(0.4), 0.15));
    }

    #[test]
    fn a_histogram_without_observations_has_no_quantile() {
        assert_eq!(Histogram::read("wait_bucket{le=\"0.1\"} 0\nwait_bucket{le=\"+Inf\"} 0\n", "wait").quantile(0.99), None);
        assert_eq!(Histogram::read(TEXT, "absent").quantile(0.5), None);
    }
}
