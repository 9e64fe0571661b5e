//! What passed through a proxy, and what was made of it.

use std::{collections::BTreeMap, time::Instant};

use hyper::body::Bytes;

use super::{
    fault::Fault,
    request::{Request, identity},
};

/// A request and its answers.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The request.
    pub request: Request,
    /// When it came.
    pub at: Instant,
    /// What the rule made of it.
    pub fault: Fault,
    /// Status that the API server answered, when it got the request.
    pub forwarded: Option<u16>,
    /// Status that the operator got, when it got one.
    pub answered: Option<u16>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Log {
    exchanges: BTreeMap<u64, Exchange>,
    attempts: BTreeMap<u64, u32>,
}

impl Log {
    pub(super) fn next(&self) -> u64 {
        self.exchanges.len() as u64 + 1
    }

    pub(super) fn exchanges(&self) -> Vec<Exchange> {
        self.exchanges.values().cloned().collect()
    }

    pub(super) fn count_attempts_anew(&mut self) {
        self.attempts.clear();
    }

    pub(super) fn admit(&mut self, head: &http::request::Parts, body: &Bytes) -> Request {
        let (method, path) = (head.method.clone(), head.uri.path().to_owned());
        let watch = head.uri.query().is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")));
        let stream = head.uri.query().is_some_and(|query| query.contains("sendInitialEvents=true"));
        let dry_run = head.uri.query().is_some_and(|query| query.contains("dryRun="));
        let attempt = self.attempts.entry(identity(&method, &path, watch, stream, body)).or_default();
        *attempt += 1;
        let attempt = *attempt;
        let request = Request { number: self.next(), attempt, method, path, watch, stream, dry_run, body: body.clone() };
        let exchange = Exchange { request: request.clone(), at: Instant::now(), fault: Fault::None, forwarded: None, answered: None };
        self.exchanges.insert(request.number, exchange);
        request
    }

    pub(super) fn note_fault(&mut self, number: u64, fault: Fault) {
        self.change(number, |exchange| exchange.fault = fault);
    }

    pub(super) fn note_forwarded(&mut self, number: u64, code: u16) {
        self.change(number, |exchange| exchange.forwarded = Some(code));
    }

    pub(super) fn note_answer(&mut self, number: u64, code: u16) {
        self.change(number, |exchange| exchange.answered = Some(code));
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut Exchange)) {
        if let Some(exchange) = self.exchanges.get_mut(&number) {
            change(exchange);
        }
    }
}
