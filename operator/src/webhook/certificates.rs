//! The webhook's certificates: an authority of its own, a leaf that it signs, and when each is replaced.
//!
//! A client that trusts what was said to be trusted some minutes ago can always shake hands: a new authority is trusted before
//! it signs anything, and an old one until nothing that it signed is served any more.

use anyhow::{Context as _, Result};
use crds::UnixSeconds;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::{
    crypto::ring::sign::any_supported_type,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use std::time::Duration;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Seconds that a leaf is good for, and an authority; both are replaced after two thirds of it.
const LEAF: i64 = 30 * DAY;
const AUTHORITY: i64 = 365 * DAY;
const DAY: i64 = 24 * 3600;
/// Seconds for what was written to reach every replica and every API server; both watch.
pub const OVERLAP: i64 = 600;
/// Certificates are dated back by this much, in seconds, for clocks that are slow.
const SKEW: i64 = 3600;

/// Everything that is kept in the Secret, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// Authorities that clients are to trust, the oldest first.
    pub trusted: String,
    /// Key of the newest of them.
    pub authority_key: String,
    /// What is served.
    pub leaf: String,
    /// Its key.
    pub leaf_key: String,
}

/// When something was made and until when it is good, unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    made: UnixSeconds,
    ends: UnixSeconds,
}

impl Life {
    fn of(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        Self { made: validity.not_before.timestamp().saturating_add(SKEW), ends: validity.not_after.timestamp() }
    }

    fn is_old(self, now: UnixSeconds) -> bool {
        now.saturating_sub(self.made) >= (self.ends - self.made) * 2 / 3
    }
}

impl Certificates {
    /// The first ones, for a server of these names.
    pub fn new(names: &[String], now: UnixSeconds) -> Result<Self> {
        let (trusted, authority_key) = authority(now)?;
        let (leaf, leaf_key) = sign(&trusted, &authority_key, names, now)?;
        Ok(Self { trusted, authority_key, leaf, leaf_key })
    }

    /// What they are to become now; nothing when they stay. What cannot be read, or was made for other names, is an error: then
    /// all of them are made anew.
    pub fn next(&self, names: &[String], now: UnixSeconds) -> Result<Option<Self>> {
        let trusted = read(&self.trusted)?;
        let lives: Vec<_> = trusted.iter().map(|der| Ok(Life::of(&parse(der)?))).collect::<Result<_>>()?;
        let newest = *lives.last().context("no authority")?;
        let der = read(&self.leaf)?;
        let leaf = parse(der.first().context("no leaf")?)?;
        let life = Life::of(&leaf);
        anyhow::ensure!(life.ends > now && newest.ends > now, "they are not good any more");
        anyhow::ensure!(names_of(&leaf) == names, "they are for other names");
        let by_newest = leaf.issuer() == parse(trusted.last().context("no authority")?)?.subject();
        if newest.is_old(now) && by_newest {
            let (pem, authority_key) = authority(now)?;
            return Ok(Some(Self { trusted: format!("{}{pem}", self.trusted), authority_key, ..self.clone() }));
        }
        let known_everywhere = now.saturating_sub(newest.made) >= OVERLAP;
        if (life.is_old(now) || !by_newest) && known_everywhere {
            let newest = last(&self.trusted)?;
            let (leaf, leaf_key) = sign(&newest, &self.authority_key, names, now)?;
            return Ok(Some(Self { leaf, leaf_key, ..self.clone() }));
        }
        if by_newest && trusted.len() > 1 && now.saturating_sub(life.made) >= OVERLAP {
            return Ok(Some(Self { trusted: last(&self.trusted)?, ..self.clone() }));
        }
        Ok(None)
    }

    /// As it is served.
    pub fn certified_key(&self) -> Result<CertifiedKey> {
        let key = PrivateKeyDer::from_pem_slice(self.leaf_key.as_bytes()).context("key")?;
        let key = any_supported_type(&key).context("key")?;
        let certified = CertifiedKey::new(read(&self.leaf)?, key);
        certified.keys_match().context("key and certificate")?;
        Ok(certified)
    }

    /// Until when the leaf is good, unix seconds.
    pub fn expires(&self) -> Result<i64> {
        let der = read(&self.leaf)?;
        Ok(Life::of(&parse(der.first().context("no leaf")?)?).ends)
    }
}

/// The last of certificates that follow each other in one text.
fn last(all: &str) -> Result<String> {
    let start = all.rfind("-----BEGIN CERTIFICATE-----").context("no certificate")?;
    Ok(all[start..].to_owned())
}

fn read(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().context("certificate")
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>> {
    Ok(X509Certificate::from_der(der).context("certificate")?.1)
}

fn names_of(leaf: &X509Certificate<'_>) -> Vec<String> {
    let alternatives = leaf.subject_alternative_name().ok().flatten();
    let names = alternatives.iter().flat_map(|extension| &extension.value.general_names);
    names
        .filter_map(|name| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

fn dated(mut params: CertificateParams, now: UnixSeconds, seconds: i64) -> CertificateParams {
    let at = |seconds: i64| date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    params.not_before = at(now.saturating_sub(SKEW));
    params.not_after = at(now.saturating_add(seconds));
    params
}

/// An authority's certificate and key. Its name has its time, so that those that follow each other differ.
fn authority(now: UnixSeconds) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let certificate =
        authority_params(&format!("ingress-daemonset-operator webhook {now}"), now)?.self_signed(&key).context("authority")?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn authority_params(name: &str, now: UnixSeconds) -> Result<CertificateParams> {
    let mut params = dated(CertificateParams::new(Vec::new())?, now, AUTHORITY);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

/// A leaf for these names, and its key.
fn sign(authority: &str, authority_key: &str, names: &[String], now: UnixSeconds) -> Result<(String, String)> {
    let der = read(authority)?;
    let parsed = parse(der.first().context("no authority")?)?;
    let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok()).context("an authority without a name")?;
    let issuer = Issuer::new(authority_params(name, now)?, KeyPair::from_pem(authority_key).context("key of the authority")?);
    let mut params = dated(CertificateParams::new(names.to_vec())?, now, LEAF);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "ingress-daemonset-operator webhook");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let leaf = params.signed_by(&key, &issuer).context("leaf")?;
    Ok((leaf.pem(), key.serialize_pem()))
}
