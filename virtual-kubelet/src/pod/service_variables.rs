//! Variables that tell a container the addresses of services; no I/O.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service};

/// The variables for `pod`: services of its namespace when it wants links, and in any case the API
/// server's own service. Services without an address have none.
///
/// ```
/// use k8s_openapi::api::core::v1::{Pod, Service, ServicePort, ServiceSpec};
///
/// let ports = Some(vec![ServicePort { port: 5432, ..ServicePort::default() }]);
/// let spec = Some(ServiceSpec { cluster_ip: Some("10.0.0.7".into()), ports, ..ServiceSpec::default() });
/// let mut service = Service { spec, ..Service::default() };
/// service.metadata.name = Some("my-db".into());
/// let variables = virtual_kubelet::pod::service_variables::of(&Pod::default(), &[service]);
/// assert_eq!(variables["MY_DB_SERVICE_HOST"], "10.0.0.7");
/// assert_eq!(variables["MY_DB_PORT"], "tcp://10.0.0.7:5432");
/// ```
pub fn of(pod: &Pod, services: &[Service]) -> BTreeMap<String, String> {
    let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
    let mut variables = BTreeMap::new();
    let is_api = |service: &Service| {
        service.metadata.namespace.as_deref() == Some("default") && service.metadata.name.as_deref() == Some("kubernetes")
    };
    // The pod's own namespace wins over `default` for a service of the name `kubernetes`.
    for service in services.iter().filter(|service| is_api(service)) {
        add(&mut variables, service);
    }
    for service in services {
        if links && service.metadata.namespace == pod.metadata.namespace {
            add(&mut variables, service);
        }
    }
    variables
}

fn add(variables: &mut BTreeMap<String, String>, service: &Service) {
    let Some((name, spec)) = service.metadata.name.as_ref().zip(service.spec.as_ref()) else { return };
    let Some(address) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else { return };
    let Some(ports) = spec.ports.as_ref().filter(|ports| !ports.is_empty()) else { return };
    let prefix = name.to_uppercase().replace('-', "_");
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    variables.insert(format!("{prefix}_SERVICE_HOST"), address.to_owned());
    variables.insert(format!("{prefix}_SERVICE_PORT"), ports[0].port.to_string());
    for (index, port) in ports.iter().enumerate() {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let name = name.to_uppercase().replace('-', "_");
            variables.insert(format!("{prefix}_SERVICE_PORT_{name}"), port.port.to_string());
        }
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let url = format!("{}://{host}:{}", protocol.to_lowercase(), port.port);
        if index == 0 {
            variables.insert(format!("{prefix}_PORT"), url.clone());
        }
        let port_prefix = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        variables.insert(port_prefix.clone(), url);
        variables.insert(format!("{port_prefix}_PROTO"), protocol.to_lowercase());
        variables.insert(format!("{port_prefix}_PORT"), port.port.to_string());
        variables.insert(format!("{port_prefix}_ADDR"), address.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PodSpec, ServicePort, ServiceSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn service(namespace: &str, name: &str, ip: &str) -> Service {
        Service {
            metadata: ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..ObjectMeta::default() },
            spec: Some(ServiceSpec {
                cluster_ip: Some(ip.into()),
                ports: Some(vec![ServicePort { name: Some("https".into()), port: 443, ..ServicePort::default() }]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }

    fn pod(links: bool) -> Pod {
        Pod {
            metadata: ObjectMeta { namespace: Some("web".into()), ..ObjectMeta::default() },
            spec: Some(PodSpec { enable_service_links: Some(links), ..PodSpec::default() }),
            ..Pod::default()
        }
    }

    #[test]
    fn the_api_server_is_told_even_without_links() {
        let services = [service("default", "kubernetes", "10.0.0.1"), service("web", "my-db", "10.0.0.2")];
        let variables = of(&pod(false), &services);
        assert_eq!(variables["KUBERNETES_SERVICE_HOST"], "10.0.0.1");
        assert_eq!(variables["KUBERNETES_SERVICE_PORT_HTTPS"], "443");
        assert_eq!(variables["KUBERNETES_PORT_443_TCP_ADDR"], "10.0.0.1");
        assert!(!variables.contains_key("MY_DB_SERVICE_HOST"));
    }

    #[test]
    fn links_cover_services_of_the_namespace_that_have_an_address() {
        let services = [service("web", "my-db", "10.0.0.2"), service("web", "headless", "None"), service("other", "x", "10.0.0.3")];
        let variables = of(&pod(true), &services);
        assert_eq!(variables["MY_DB_PORT"], "tcp://10.0.0.2:443");
        assert!(!variables.keys().any(|name| name.starts_with("HEADLESS") || name.starts_with("X_")));
    }
}
