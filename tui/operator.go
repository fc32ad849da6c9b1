package tui

import (
	"context"
	"os/exec"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Operator provides what snapshots do not contain, and performs the user's actions. Its
// methods may be called concurrently; an error is shown in one line. A dashboard whose
// Operator is nil is read-only.
type Operator interface {
	// Requests lists the newest requests of all reachable balancers, at most limit,
	// newest first.
	Requests(ctx context.Context, limit int) ([]RequestRow, error)
	// Explain explains how a request was routed, in lines of at most width cells.
	Explain(ctx context.Context, request string, width int) (string, error)
	// Load returns the recent load by model and region, oldest first.
	Load(ctx context.Context) ([]LoadSeries, error)
	// Spec returns the service.yaml that the service was deployed from.
	Spec(ctx context.Context) (string, error)
	// Deployed returns the service.yaml if the service was deployed from this machine, and nil if it was deployed from
	// another one: then the service accepts no action, and there are no logs and shells.
	Deployed(ctx context.Context) (*service.Spec, error)
	// Logs returns the last lines of the log of a replica or balancer.
	Logs(ctx context.Context, id string, lines int) ([]string, error)
	// Shell returns the command that opens a shell on the machine of a replica or balancer.
	Shell(ctx context.Context, id string) (*exec.Cmd, error)
	// Perform performs an action and returns its result in one line.
	Perform(ctx context.Context, a Action) (string, error)
}

// RequestRow is a row of the requests view: a summary and the reason for its routing.
type RequestRow struct {
	telemetry.RequestSummary
	Why string
}

// LoadSeries is the interactive load of a model in a region, in the unit of its
// forecast: uncached prompt tokens per second.
type LoadSeries struct {
	Model  string
	Region service.Region
	Start  time.Time // of the first step
	Step   time.Duration
	TPS    []float64 // NaN where the load is unknown
}

// Verb is the kind of an action.
type Verb string

// The verbs of actions.
const (
	VerbDrain   Verb = "drain"   // let a replica finish its requests and send it no new ones
	VerbUndrain Verb = "undrain" // send it requests again
	VerbDonate  Verb = "donate"  // donate it to other work
	VerbReclaim Verb = "reclaim" // end its donation: it serves again
	VerbApply   Verb = "apply"   // apply a plan
)

// Action is an action on a Replica or, for VerbApply, on the Plan that the user saw and
// confirmed.
type Action struct {
	Verb    Verb
	Replica string
	Plan    *telemetry.PlanSummary
}
