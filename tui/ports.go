package tui

import (
	"context"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Operator answers what a dashboard asks beyond snapshots, and carries its user's
// orders out. All methods may be called from several goroutines; an error is shown
// in one line. A nil Operator is a dashboard that only looks.
type Operator interface {
	// Requests lists the newest requests of all balancers that answer, at most limit,
	// the newest first.
	Requests(ctx context.Context, limit int) ([]Request, error)
	// Story is all that is known of a request, in lines of at most width cells.
	Story(ctx context.Context, request string, width int) (string, error)
	// Load is what was asked lately, by model and region, the oldest first.
	Load(ctx context.Context) ([]LoadSeries, error)
	// Spec is the service.yaml that the service was brought up from.
	Spec(ctx context.Context) (string, error)
	// Logs are the last lines of the process or machine with that id.
	Logs(ctx context.Context, id string, lines int) ([]string, error)
	// Do carries an order out and says in a line what came of it.
	Do(ctx context.Context, o Order) (string, error)
}

// Request is a row of the requests: a summary with its reason in words.
type Request struct {
	telemetry.RequestSummary
	Why string
}

// LoadSeries is the interactive load of a model in a region, in the unit of its
// forecast: uncached prompt tokens a second.
type LoadSeries struct {
	Model  string
	Region service.Region
	Start  time.Time // of the first step
	Step   time.Duration
	TPS    []float64 // NaN where nobody counted
}

// Verb is what an order is to do.
type Verb string

// The verbs of orders.
const (
	VerbDrain   Verb = "drain"   // let a replica finish what it has and send it nothing more
	VerbUndrain Verb = "undrain" // send it requests again
	VerbDonate  Verb = "donate"  // lend it to the spot pool
	VerbReclaim Verb = "reclaim" // take it back
	VerbApply   Verb = "apply"   // make the service what a proposal says
)

// Order is one thing to do: with a Replica, or for VerbApply with the Plan that its
// user saw and agreed to.
type Order struct {
	Verb    Verb
	Replica string
	Plan    *telemetry.PlanSummary
}
