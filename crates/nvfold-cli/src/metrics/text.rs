//! Families of metrics as text.

use super::families::{Family, Kind, Value};
use clap::ValueEnum;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::fmt;

/// A format of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// OpenMetrics 1.0, which Prometheus asks for.
    #[default]
    Openmetrics,
    /// The text format of Prometheus 0.0.4, which its textfile collector and promtool read.
    Prometheus,
}

impl Format {
    /// Returns the format that an HTTP client asks for by its header Accept.
    pub(super) fn accepted(accept: &str) -> Format {
        if accept.to_ascii_lowercase().contains("application/openmetrics-text") {
            Format::Openmetrics
        } else {
            Format::Prometheus
        }
    }

    /// Returns the value of the header Content-Type.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::Openmetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Encodes families.
pub(super) fn encode(families: Vec<Family>, format: Format) -> String {
    let mut registry = Registry::with_prefix("nvfold");
    registry.register_collector(Box::new(All(families)));
    let mut out = String::new();
    let encoded = match format {
        Format::Openmetrics => text::encode(&mut out, &registry),
        Format::Prometheus => prometheus_text::encode(&mut out, &registry),
    };
    encoded.expect("a string takes all text");
    out
}

#[derive(Debug)]
struct All(Vec<Family>);

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in self.0.iter().filter(|family| !family.samples.is_empty()) {
            let kind = match family.kind {
                Kind::Gauge => MetricType::Gauge,
                Kind::Counter => MetricType::Counter,
                Kind::Histogram => MetricType::Histogram,
                Kind::Info => MetricType::Info,
            };
            let mut metric = encoder.encode_descriptor(family.name, family.help, family.unit.as_ref(), kind)?;
            for sample in &family.samples {
                encode_value(family.kind, &sample.value, metric.encode_family(&sample.labels)?)?;
            }
        }
        Ok(())
    }
}

fn encode_value(kind: Kind, value: &Value, mut out: MetricEncoder<'_>) -> fmt::Result {
    const NONE: Option<&Exemplar<[(&str, &str); 0], f64>> = None;
    const NO_EXEMPLARS: Option<&HashMap<usize, Exemplar<[(&str, &str); 0], f64>>> = None;
    match (kind, value) {
        (Kind::Gauge, Value::Whole(value)) => out.encode_gauge(value),
        (Kind::Gauge, Value::Real(value)) => out.encode_gauge(value),
        (_, Value::Whole(value)) => out.encode_counter(value, NONE),
        (_, Value::Real(value)) => out.encode_counter(value, NONE),
        (_, Value::Histogram { sum, count, buckets }) => out.encode_histogram(*sum, *count, buckets, NO_EXEMPLARS),
        (_, Value::Info(labels)) => out.encode_info(labels),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_gets_the_format_that_it_asks_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::Openmetrics);
        assert_eq!([Format::accepted("*/*"), Format::accepted("")], [Format::Prometheus; 2], "curl");
    }
}
