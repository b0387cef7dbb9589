//! The HTTP port of a simulated fleet: commands come in, and engines describe themselves. It knows no fleet: each question
//! goes to the loop that runs it, and waits for the answer.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// What somebody wants to know.
#[derive(Debug)]
pub(super) enum Question {
    /// A line as on stdin.
    Command(String),
    /// vLLM's description.
    KvEventSources,
    /// SGLang's description.
    ServerInfo,
}

/// A question and where its answer goes: JSON lines, or one document.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) question: Question,
    pub(super) answer: oneshot::Sender<String>,
}

/// A bound port.
pub(super) struct Control {
    listener: TcpListener,
    address: SocketAddr,
}

impl Control {
    /// Binds.
    ///
    /// # Errors
    /// A port that is taken.
    pub(super) async fn bind(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self { address: listener.local_addr()?, listener })
    }

    /// Where.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until dropped.
    ///
    /// # Errors
    /// The socket failed.
    pub(super) async fn serve(self, asked: mpsc::Sender<Asked>) -> std::io::Result<()> {
        let routes = Router::new()
            .route("/health", get(|| async { "ok" }))
            .route("/command", post(command))
            .route("/kv_event_sources", get(|state| describe(state, Question::KvEventSources)))
            .route("/server_info", get(|state| describe(state, Question::ServerInfo)))
            .with_state(asked);
        axum::serve(self.listener, routes).await
    }
}

type Asking = State<mpsc::Sender<Asked>>;

/// The JSON lines of a command; 400 if it could not be obeyed.
async fn command(State(asked): Asking, line: String) -> Response {
    match ask(&asked, Question::Command(line)).await {
        Some(lines) => {
            let status = if lines.starts_with("{\"error\"") { StatusCode::BAD_REQUEST } else { StatusCode::OK };
            (status, [(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response()
        }
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// A description; 404 from an engine that has none of this form.
async fn describe(State(asked): Asking, question: Question) -> Response {
    match ask(&asked, question).await {
        Some(document) if document == "null" => StatusCode::NOT_FOUND.into_response(),
        Some(document) => ([(header::CONTENT_TYPE, "application/json")], document).into_response(),
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// None when the fleet has ended.
async fn ask(asked: &mpsc::Sender<Asked>, question: Question) -> Option<String> {
    let (answer, wait) = oneshot::channel();
    asked.send(Asked { question, answer }).await.ok()?;
    wait.await.ok()
}
