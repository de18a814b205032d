//! A Prometheus scrape endpoint.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use prometheus::{Encoder, Registry, TextEncoder};
use tiny_http::{Header, Request, Response, Server};

/// A server on a thread of its own, up to the end of the process.
#[derive(Debug)]
pub(crate) struct Scrape {
    url: String,
    thread: JoinHandle<()>,
}

impl Scrape {
    pub(crate) fn serve(address: SocketAddr, registry: Registry) -> Result<Self, String> {
        let server = Server::http(address).map_err(|error| format!("cannot serve at {address}: {error}"))?;
        let url = format!("http://{}/metrics", server.server_addr());
        let thread = thread::spawn(move || server.incoming_requests().for_each(|request| answer(request, &registry)));
        Ok(Self { url, thread })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Keeps on answering.
    pub(crate) fn join(self) {
        let _ = self.thread.join();
    }
}

fn answer(request: Request, registry: &Registry) {
    let found = request.url().split('?').next() == Some("/metrics");
    let mut text = Vec::new();
    let (status, kind) = if !found {
        text.extend_from_slice(b"see /metrics\n");
        (404, "text/plain")
    } else if TextEncoder::new().encode(&registry.gather(), &mut text).is_ok() {
        (200, prometheus::TEXT_FORMAT)
    } else {
        (500, "text/plain")
    };
    let header = Header::from_bytes("Content-Type", kind).ok();
    let response = Response::from_data(text).with_status_code(status);
    // A client that has gone away is no concern of ours.
    let _ = request.respond(header.into_iter().fold(response, Response::with_header));
}
