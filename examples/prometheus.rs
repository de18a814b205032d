//! The layer with a Prometheus endpoint: the set-up to copy. `cargo run --example prometheus`, then scrape port 9464.

use std::error::Error;
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Encoder, TextEncoder};
use tracing_spec_decode::{builder, step_span};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9464".to_owned());
    let registry = prometheus::Registry::new();
    let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone()).build()?;
    let resource = Resource::builder().with_service_name("my-engine").build();
    let provider = SdkMeterProvider::builder().with_resource(resource).with_reader(exporter).build();
    let (layer, handle) = builder().with_meter_provider(&provider).build()?;
    tracing_subscriber::registry().with(layer).init();

    // The scrapes are answered on a thread of their own; the engine's thread never sees them.
    let server = tiny_http::Server::http(&address).map_err(|error| format!("{address}: {error}"))?;
    println!("serving http://{}/metrics", server.server_addr());
    std::thread::spawn(move || {
        for request in server.incoming_requests() {
            let mut body = Vec::new();
            let encoded = TextEncoder::new().encode(&registry.gather(), &mut body);
            let response =
                tiny_http::Response::from_data(body).with_status_code(if encoded.is_ok() { 200 } else { 500 });
            // A scraper that has gone away is no concern of ours.
            let _ = request.respond(response);
        }
    });

    // Your decode loop, here for half a minute.
    for _ in 0..1_500 {
        let span = step_span!(num_spec_tokens = 4, num_drafts = 8);
        span.in_scope(|| std::thread::sleep(Duration::from_millis(20)));
        span.record("num_accepted_tokens", 19);
        span.record("num_emitted_tokens", 27);
    }
    handle.flush(Duration::from_secs(5))?;
    provider.shutdown()?;
    Ok(())
}
