//! The serving certificate: given in files, or requested from the cluster.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::api_call::within;

/// Who signs certificates of kubelets.
const SIGNER: &str = "kubernetes.io/kubelet-serving";
/// How often a request is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often it is said that there is no certificate yet.
const SAY_EVERY: SignedDuration = SignedDuration::from_mins(1);
/// How long a request is waited for before another one is made: the cluster forgets them after an hour.
const PATIENCE: SignedDuration = SignedDuration::from_mins(50);
/// How long after a failed request another one is made.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// How often files that were given are read again, as by a kubelet.
const READ_EVERY: Duration = Duration::from_mins(1);
/// Longest time until the certificate is looked at again.
const LOOK_AGAIN: Duration = Duration::from_hours(1);

/// The certificate of each next handshake. Without one, handshakes fail.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use virtual_kubelet::api::{NodeIdentity, ServingCertificate, tls};
/// # use std::path::PathBuf;
///
/// # async fn example(client: kube::Client) -> anyhow::Result<()> {
/// let certificate = ServingCertificate::default();
/// let identity = NodeIdentity { name: "n1".into(), addresses: vec!["198.18.0.1".parse()?] };
/// let report = |text: &str| eprintln!("{text}");
/// tokio::spawn(certificate.clone().keep_requested(client, identity, "/var/lib/vk/pki".into(), report));
/// assert!(!certificate.is_there(), "somebody has to approve it first");
/// let settings = tls(Arc::new(certificate), None)?;
///
/// // Or one that somebody else renews.
/// let (file, key) = (PathBuf::from("/etc/vk/tls.crt"), PathBuf::from("/etc/vk/tls.key"));
/// let certificate = ServingCertificate::from_files(&file, &key)?;
/// tokio::spawn(certificate.clone().keep_files(file, key, report));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct ServingCertificate(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServingCertificate({})", if self.is_there() { "present" } else { "absent" })
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().ok()?.clone()
    }
}

impl ServingCertificate {
    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.0.read().is_ok_and(|key| key.is_some())
    }

    fn set(&self, key: CertifiedKey) {
        if let Ok(mut slot) = self.0.write() {
            *slot = Some(Arc::new(key));
        }
    }

    /// Takes certificate and key from files in PEM format, once. Fails when they cannot be read or do not belong together.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self> {
        let this = Self::default();
        this.set(load(certificate, key)?.key);
        Ok(this)
    }

    /// A new one, made in memory, which nobody else has signed: API servers take it unless they are given an authority for kubelets
    /// (`--kubelet-certificate-authority`). Fails for a name that no certificate can have.
    ///
    /// ```
    /// use virtual_kubelet::api::{NodeIdentity, ServingCertificate};
    ///
    /// let identity = NodeIdentity { name: "n1".into(), addresses: vec!["198.18.0.1".parse()?] };
    /// assert!(ServingCertificate::self_signed(&identity)?.is_there());
    /// # Ok::<_, anyhow::Error>(())
    /// ```
    pub fn self_signed(identity: &NodeIdentity) -> Result<Self> {
        let key = KeyPair::generate()?;
        let certificate = certificate_params(identity)?.self_signed(&key)?;
        let private = PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| anyhow::anyhow!("{error}"))?;
        let this = Self::default();
        this.set(CertifiedKey::new(vec![certificate.der().clone()], any_supported_type(&private)?));
        Ok(this)
    }

    /// Takes certificate and key from the files, which it reads once a minute, whenever they have changed. What cannot be used is told to
    /// `report`, and the certificate before stays. Never returns.
    pub async fn keep_files(self, certificate: PathBuf, key: PathBuf, report: impl Fn(&str)) {
        let mut said = String::new();
        loop {
            tokio::time::sleep(READ_EVERY).await;
            match load(&certificate, &key) {
                Ok(loaded) => {
                    said.clear();
                    let changed = self.0.read().is_ok_and(|kept| kept.as_ref().is_none_or(|kept| kept.cert != loaded.key.cert));
                    if changed {
                        self.set(loaded.key);
                        report("read the serving certificate of the kubelet API again");
                    }
                }
                Err(error) => {
                    let text = format!("keeping the old serving certificate of the kubelet API: {error:#}");
                    if text != said {
                        report(&text);
                        said = text;
                    }
                }
            }
        }
    }

    /// Keeps a certificate that the cluster signs: requests one when there is none in `directory` (`kubelet-server.crt` and
    /// `kubelet-server.key`), and a new one when four fifths of its life are over. Never returns; `report` is told whenever the
    /// state changes, and once a minute while there is none.
    pub async fn keep_requested(self, client: Client, identity: NodeIdentity, directory: PathBuf, report: impl Fn(&str)) {
        let (certificate, key) = (directory.join("kubelet-server.crt"), directory.join("kubelet-server.key"));
        loop {
            let now = Timestamp::now();
            let kept = load(&certificate, &key).ok().filter(|loaded| loaded.names_all(&identity));
            let renew_at = kept.as_ref().map_or(now, Loaded::renew_at);
            if let Some(loaded) = kept.filter(|loaded| loaded.not_after > now) {
                self.set(loaded.key);
            }
            if renew_at > now {
                let wait = Duration::try_from(renew_at.duration_since(now)).unwrap_or(LOOK_AGAIN);
                tokio::time::sleep(wait.min(LOOK_AGAIN)).await;
                continue;
            }
            match request(&client, &identity, &report).await.and_then(|(signed, key_pem)| {
                std::fs::create_dir_all(&directory)?;
                write_private(&key, &key_pem)?;
                write_private(&certificate, &signed)
            }) {
                Ok(()) => {
                    report("the serving certificate of the kubelet API was signed");
                    let usable = load(&certificate, &key).ok().filter(|loaded| loaded.names_all(&identity));
                    if usable.is_some_and(|loaded| loaded.renew_at() > Timestamp::now()) {
                        continue;
                    }
                    report("the signed serving certificate has another name or expires soon; requesting another one later");
                }
                Err(error) => report(&format!("no serving certificate for the kubelet API: {error:#}")),
            }
            tokio::time::sleep(AFTER_FAILURE).await;
        }
    }
}

/// What a certificate of a kubelet says about its node.
///
/// ```
/// use virtual_kubelet::api::NodeIdentity;
///
/// let identity = NodeIdentity { name: "n1".into(), addresses: vec!["198.18.0.1".parse()?, "fd00::1".parse()?] };
/// # Ok::<_, std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// Name of the node.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

struct Loaded {
    key: CertifiedKey,
    leaf: Vec<u8>,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl Loaded {
    /// When four fifths of its life are over, as with kubelets.
    fn renew_at(&self) -> Timestamp {
        let life = self.not_after.duration_since(self.not_before);
        self.not_before.checked_add(life / 5 * 4).unwrap_or(self.not_after)
    }

    fn names_all(&self, identity: &NodeIdentity) -> bool {
        let Ok((_, leaf)) = X509Certificate::from_der(&self.leaf) else { return false };
        let Ok(Some(names)) = leaf.subject_alternative_name() else { return false };
        identity.addresses.iter().all(|address| {
            let octets = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            names.value.general_names.iter().any(|name| matches!(name, x509_parser::prelude::GeneralName::IPAddress(ip) if *ip == octets))
        })
    }
}

fn load(certificate: &Path, key: &Path) -> Result<Loaded> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .with_context(|| format!("reading {}", certificate.display()))?;
    let private = PrivateKeyDer::from_pem_file(key).with_context(|| format!("reading {}", key.display()))?;
    let leaf = chain.first().with_context(|| format!("{} has no certificate", certificate.display()))?.to_vec();
    let (not_before, not_after) = {
        let (_, parsed) = X509Certificate::from_der(&leaf).map_err(|error| anyhow::anyhow!("{}: {error}", certificate.display()))?;
        let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp());
        (time(parsed.validity().not_before)?, time(parsed.validity().not_after)?)
    };
    let key = CertifiedKey::new(chain, any_supported_type(&private).with_context(|| format!("using {}", key.display()))?);
    key.keys_match().context("certificate and key do not match")?;
    Ok(Loaded { key, leaf, not_before, not_after })
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    std::io::Write::write_all(&mut file, text.as_bytes()).with_context(|| format!("writing {}", path.display()))
}

fn certificate_params(identity: &NodeIdentity) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(vec![identity.name.clone()])?;
    params.subject_alt_names.extend(identity.addresses.iter().copied().map(SanType::IpAddress));
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{}", identity.name));
    params.distinguished_name = subject;
    Ok(params)
}

/// The request of a node for a certificate, and its private key.
fn signing_request(identity: &NodeIdentity) -> Result<(CertificateSigningRequest, String)> {
    let key = KeyPair::generate()?;
    let request = certificate_params(identity)?.serialize_request(&key)?.pem()?;
    let spec = CertificateSigningRequestSpec {
        request: ByteString(request.into_bytes()),
        signer_name: SIGNER.into(),
        usages: Some(vec!["digital signature".into(), "server auth".into()]),
        ..CertificateSigningRequestSpec::default()
    };
    let metadata = ObjectMeta { generate_name: Some("csr-".into()), ..ObjectMeta::default() };
    Ok((CertificateSigningRequest { metadata, spec, status: None }, key.serialize_pem()))
}

async fn request(client: &Client, identity: &NodeIdentity, report: &impl Fn(&str)) -> Result<(String, String)> {
    let api = Api::<CertificateSigningRequest>::all(client.clone());
    let (wanted, key) = signing_request(identity)?;
    let name = within(api.create(&PostParams::default(), &wanted)).await.context("requesting it")?.metadata.name.unwrap_or_default();
    let began = Timestamp::now();
    let mut said: Option<Timestamp> = None;
    loop {
        let now = Timestamp::now();
        if said.is_none_or(|at| now.duration_since(at) >= SAY_EVERY) {
            said = Some(now);
            report(&format!(
                "CertificateSigningRequest {name} for the serving certificate of the kubelet API waits for approval: \
                 kubectl certificate approve {name}; until then logs, exec and the like do not work on this node"
            ));
        }
        tokio::time::sleep(LOOK_EVERY).await;
        // What cannot be read now can be later, and what is gone is asked for anew.
        let found = match within(api.get_opt(&name)).await {
            Ok(found) => found.with_context(|| format!("CertificateSigningRequest {name} is gone"))?,
            Err(_) => continue,
        };
        let status = found.status.unwrap_or_default();
        if let Some(bad) = status.conditions.iter().flatten().find(|condition| matches!(&*condition.type_, "Denied" | "Failed")) {
            bail!("CertificateSigningRequest {name}: {}: {}", bad.type_, bad.message.as_deref().unwrap_or_default());
        }
        if let Some(certificate) = status.certificate {
            return Ok((String::from_utf8(certificate.0).context("reading the signed certificate")?, key));
        }
        if now.duration_since(began) > PATIENCE {
            bail!("nobody approved CertificateSigningRequest {name}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_the_signer_of_kubelets_demands() {
        let identity = NodeIdentity { name: "n1".into(), addresses: vec!["10.0.0.1".parse().unwrap()] };
        let (request, key) = signing_request(&identity).unwrap();
        assert_eq!(request.spec.signer_name, "kubernetes.io/kubelet-serving");
        assert_eq!(request.spec.usages.unwrap(), ["digital signature", "server auth"]);
        let pem = String::from_utf8(request.spec.request.0).unwrap();
        assert!(pem.starts_with("-----BEGIN CERTIFICATE REQUEST-----"));
        assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"));
    }

    #[tokio::test(start_paused = true)]
    async fn changed_certificate_files_are_read_within_a_minute_unless_bad() {
        let dir = std::env::temp_dir().join(format!("certificate-kept-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (crt, key) = (dir.join("a.crt"), dir.join("a.key"));
        let make = || {
            let fresh = KeyPair::generate().unwrap();
            std::fs::write(&crt, CertificateParams::new(vec!["n1".into()]).unwrap().self_signed(&fresh).unwrap().pem()).unwrap();
            std::fs::write(&key, fresh.serialize_pem()).unwrap();
            load(&crt, &key).unwrap().key.cert
        };
        let first = make();
        let certificate = ServingCertificate::from_files(&crt, &key).unwrap();
        let served = || certificate.0.read().unwrap().as_ref().unwrap().cert.clone();
        let said = Arc::new(std::sync::Mutex::new(Vec::new()));
        let heard = said.clone();
        let report = move |text: &str| heard.lock().unwrap().push(text.to_owned());
        let keeping = tokio::spawn(certificate.clone().keep_files(crt.clone(), key.clone(), report));
        let minutes = async |count: u32| tokio::time::sleep(READ_EVERY * count + Duration::from_secs(1)).await;
        std::fs::write(&crt, "no certificate").unwrap();
        minutes(3).await;
        assert!(served() == first && said.lock().unwrap().len() == 1, "{said:?}");
        let second = make();
        minutes(1).await;
        assert!(served() == second && second != first && said.lock().unwrap().len() == 2, "{said:?}");
        keeping.abort();
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn files_that_do_not_belong_together_are_refused() {
        let dir = std::env::temp_dir().join(format!("certificate-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let make = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new(vec!["n1".into()]).unwrap().self_signed(&key).unwrap();
            std::fs::write(dir.join(format!("{name}.crt")), certificate.pem()).unwrap();
            std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        };
        make("a");
        make("b");
        assert!(ServingCertificate::from_files(&dir.join("a.crt"), &dir.join("a.key")).unwrap().is_there());
        assert!(ServingCertificate::from_files(&dir.join("a.crt"), &dir.join("b.key")).is_err());
        assert!(ServingCertificate::from_files(&dir.join("a.crt"), &dir.join("none")).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
