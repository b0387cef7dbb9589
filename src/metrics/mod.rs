//! Counters of requests, and the form in which everything is shown at `/metrics`.
//!
//! Numbers of owners live with the owners: [`Metrics::render`] is given them at each scrape and stores no series, so that
//! the series of an owner vanish with it. Labels come from registrations and from fixed words, never from what an
//! engine or a client sends.

mod controller;

pub use controller::ControllerMetrics;

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry, TextEncoder,
};

/// First bound of the request histogram, in seconds; each next one is twice as large.
const FIRST_BUCKET_S: f64 = 0.0001;

/// Bounds of the request histogram: up to 52.4288 s.
const BUCKETS: usize = 20;

/// Counters of requests; made once per process.
pub struct Metrics {
    registry: Registry,
    routes: Vec<RouteMetrics>,
}

/// Children of one route, held so that counting looks nothing up.
struct RouteMetrics {
    path: &'static str,
    duration: Histogram,
    /// GET and POST.
    requests: [IntCounter; 2],
    other_requests: IntCounterVec,
    errors: [IntCounter; 2],
}

/// What a sample means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up only.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One family of samples, given at scrape time.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Name with unit.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
}

/// One sample of a [`Family`].
#[derive(Debug, Clone)]
pub struct Sample {
    /// The family; samples of one name stand together in the output.
    pub family: &'static Family,
    /// Label names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}

impl Metrics {
    /// Counters for these paths. Paths that are not among them are not counted.
    #[must_use]
    pub fn new(paths: &[&'static str]) -> Self {
        let registry = Registry::new();
        let buckets = prometheus::exponential_buckets(FIRST_BUCKET_S, 2.0, BUCKETS)
            .expect("start, factor and count are above zero");
        let duration = HistogramVec::new(
            HistogramOpts::new("dynamo_kvindexer_request_duration_seconds", "Time to answer a request.")
                .buckets(buckets),
            &["endpoint"],
        );
        let duration = duration.expect("the name and labels are valid");
        let counters = |name, help, labels: &[&str]| {
            IntCounterVec::new(Opts::new(name, help), labels).expect("the name and labels are valid")
        };
        let requests = counters("dynamo_kvindexer_requests_total", "Requests.", &["endpoint", "method"]);
        let errors = counters("dynamo_kvindexer_errors_total", "Answers with an error.", &["endpoint", "status_class"]);
        for collector in [
            Box::new(duration.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(requests.clone()),
            Box::new(errors.clone()),
        ] {
            registry.register(collector).expect("each family is registered once");
        }
        let route = |path: &&'static str| RouteMetrics {
            path,
            duration: duration.with_label_values(&[path]),
            requests: ["GET", "POST"].map(|method| requests.with_label_values(&[*path, method])),
            other_requests: requests.clone(),
            errors: ["4xx", "5xx"].map(|class| errors.with_label_values(&[*path, class])),
        };
        Self { registry, routes: paths.iter().map(route).collect() }
    }

    /// Counts an answered request to the path with this number in the list given to [`Self::new`].
    pub fn observe_request(&self, path: usize, method: &str, status: u16, seconds: f64) {
        let Some(route) = self.routes.get(path) else {
            return;
        };
        route.duration.observe(seconds);
        match method {
            "GET" => route.requests[0].inc(),
            "POST" => route.requests[1].inc(),
            other => route.other_requests.with_label_values(&[route.path, known_method(other)]).inc(),
        }
        match status {
            400..500 => route.errors[0].inc(),
            500.. => route.errors[1].inc(),
            _ => {}
        }
    }

    /// Everything in the text format, version 0.0.4. Untouched routes are left out.
    #[must_use]
    pub fn render(&self, samples: Vec<Sample>) -> Vec<u8> {
        let mut families = self.registry.gather();
        for family in &mut families {
            if family.get_field_type() != MetricType::GAUGE {
                family.mut_metric().retain(touched);
            }
        }
        families.retain(|family| !family.get_metric().is_empty());
        families.extend(grouped(samples));
        families.sort_by(|a, b| a.name().cmp(b.name()));
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text).expect("families are never empty and memory takes all");
        text
    }
}

/// The method as a label: clients may send any word.
fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 7] = ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("other")
}

fn touched(metric: &Metric) -> bool {
    metric.get_histogram().get_sample_count() > 0 || metric.get_counter().get_value() > 0.0
}

fn grouped(samples: Vec<Sample>) -> Vec<MetricFamily> {
    let mut families: Vec<MetricFamily> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for sample in samples {
        let Family { name, help, kind } = *sample.family;
        let place = *places.entry(name).or_insert_with(|| {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(match kind {
                Kind::Counter => MetricType::COUNTER,
                Kind::Gauge => MetricType::GAUGE,
            });
            families.push(family);
            families.len() - 1
        });
        families[place].mut_metric().push(metric(sample));
    }
    families
}

fn metric(sample: Sample) -> Metric {
    let pair = |(name, value): (&str, String)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value);
        pair
    };
    let mut metric = Metric::from_label(sample.labels.into_iter().map(pair).collect());
    match sample.family.kind {
        Kind::Counter => {
            let mut counter = Counter::default();
            counter.set_value(sample.value);
            metric.set_counter(counter);
        }
        Kind::Gauge => {
            let mut gauge = Gauge::default();
            gauge.set_value(sample.value);
            metric.set_gauge(gauge);
        }
    }
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: Family = Family { name: "kvindexer_blocks", help: "Held blocks.", kind: Kind::Gauge };

    fn text(metrics: &Metrics, samples: Vec<Sample>) -> String {
        String::from_utf8(metrics.render(samples)).unwrap()
    }

    #[test]
    fn requests_are_counted_by_route_method_and_class() {
        let metrics = Metrics::new(&["/query", "/health"]);
        metrics.observe_request(0, "POST", 200, 0.00015);
        metrics.observe_request(0, "BREW", 405, 0.1);
        metrics.observe_request(0, "POST", 503, 0.1);
        let text = text(&metrics, Vec::new());
        for line in [
            r#"dynamo_kvindexer_requests_total{endpoint="/query",method="POST"} 2"#,
            r#"dynamo_kvindexer_requests_total{endpoint="/query",method="other"} 1"#,
            r#"dynamo_kvindexer_errors_total{endpoint="/query",status_class="4xx"} 1"#,
            r#"dynamo_kvindexer_errors_total{endpoint="/query",status_class="5xx"} 1"#,
            r#"dynamo_kvindexer_request_duration_seconds_bucket{endpoint="/query",le="0.0001"} 0"#,
            r#"dynamo_kvindexer_request_duration_seconds_bucket{endpoint="/query",le="0.0002"} 1"#,
            r#"dynamo_kvindexer_request_duration_seconds_bucket{endpoint="/query",le="52.4288"} 3"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("/health"), "untouched routes are left out");
    }

    #[test]
    fn samples_vanish_when_they_are_no_longer_given() {
        let metrics = Metrics::new(&[]);
        let sample = Sample { family: &BLOCKS, labels: vec![("instance_id", "a\"b".to_owned())], value: 3.0 };
        let shown = text(&metrics, vec![sample]);
        assert_eq!(
            shown,
            "# HELP kvindexer_blocks Held blocks.\n# TYPE kvindexer_blocks gauge\nkvindexer_blocks{instance_id=\"a\\\"b\"} 3\n"
        );
        assert_eq!(text(&metrics, Vec::new()), "");
    }
}
