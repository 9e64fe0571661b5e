//! Who is who in the bed: one authority, a serving certificate, client identities and the service-account key.

use std::{
    net::IpAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};

/// The bed's certificate authority, and the directory that everything signed by it is written to.
pub struct Authority {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// How a kubeconfig's user proves who it is.
#[derive(Clone, Copy, Debug)]
pub enum Credential<'a> {
    /// By a client certificate.
    Certificate(&'a Identity),
    /// By a token from the API server's token file.
    Token(&'a str),
}

impl Authority {
    /// Makes a new authority whose files go to `directory`.
    pub fn new(directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = subject("bed", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?).context("signing the authority")?;
        let authority = Self { directory: directory.to_owned(), issuer };
        authority.write("ca.crt", &authority.issuer.pem())?;
        authority.write("ca.key", &authority.issuer.key().serialize_pem())?;
        Ok(authority)
    }

    /// The authority's certificate file.
    pub fn certificate(&self) -> PathBuf {
        self.directory.join("ca.crt")
    }

    /// The authority's private key, for the controller that signs certificates of nodes.
    pub fn key(&self) -> PathBuf {
        self.directory.join("ca.key")
    }

    /// A certificate for a server that is reached by these names and addresses.
    pub fn server(&self, name: &str, dns: &[&str], addresses: &[IpAddr]) -> Result<Identity> {
        let mut params = CertificateParams::new(dns.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        params.distinguished_name = subject(name, None);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, params)
    }

    /// A client certificate for user `user`, in `group` when one is given, in files named after `name`.
    pub fn client(&self, name: &str, user: &str, group: Option<&str>) -> Result<Identity> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = subject(user, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(name, params)
    }

    /// The key pair that signs service-account tokens: the private key, then the public one.
    pub fn service_account_keys(&self) -> Result<(PathBuf, PathBuf)> {
        let pair = KeyPair::generate()?;
        Ok((self.write("service-account.key", &pair.serialize_pem())?, self.write("service-account.pub", &pair.public_key_pem())?))
    }

    fn sign(&self, name: &str, mut params: CertificateParams) -> Result<Identity> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer).with_context(|| format!("signing the certificate of {name}"))?;
        Ok(Identity {
            certificate: self.write(&format!("{name}.crt"), &certificate.pem())?,
            key: self.write(&format!("{name}.key"), &key.serialize_pem())?,
        })
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        write_private(&self.directory.join(name), text)
    }

    /// A kubeconfig with everything inline, so that it works wherever the file goes.
    pub fn kubeconfig(&self, server: &str, credential: Credential<'_>) -> Result<Value> {
        let user = match credential {
            Credential::Token(token) => json!({ "token": token }),
            Credential::Certificate(identity) => json!({
                "client-certificate-data": inline(&identity.certificate)?,
                "client-key-data": inline(&identity.key)?,
            }),
        };
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bed",
            "contexts": [{ "name": "bed", "context": { "cluster": "bed", "user": "bed" } }],
            "clusters": [{ "name": "bed", "cluster": {
                "server": server,
                "certificate-authority-data": inline(&self.certificate())?,
            } }],
            "users": [{ "name": "bed", "user": user }],
        }))
    }
}

/// What a node agent is known by, and knows others by.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Its access to the API server.
    pub kubeconfig: PathBuf,
    /// What its own API serves with, unless it requests that.
    pub serving: Option<Identity>,
    /// Who signs certificates of clients of its API.
    pub client_authority: PathBuf,
}

/// Writes a file that only its owner may read.
pub fn write_private(path: &Path, text: &str) -> Result<PathBuf> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).with_context(|| format!("restricting {}", path.display()))?;
    Ok(path.to_owned())
}

fn subject(user: &str, group: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, user);
    if let Some(group) = group {
        name.push(DnType::OrganizationName, group);
    }
    name
}

fn inline(path: &Path) -> Result<ByteString> {
    std::fs::read(path).map(ByteString).with_context(|| format!("reading {}", path.display()))
}
