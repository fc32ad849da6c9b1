package telemetry

import (
	"fmt"
	"time"

	"skyserve/internal/service"
)

// Launches is what the controller may launch now, what holds it, and what failed before.
type Launches struct {
	// LastHour is the number of machines launched within the last hour, MaxPerHour its maximum; 0 = none.
	LastHour   int `json:"last_hour"`
	MaxPerHour int `json:"max_per_hour"`
	// CostPerHour is the cost of the running machines, BudgetPerHour its maximum, in USD per hour; 0 = no
	// maximum.
	CostPerHour   float64 `json:"cost_per_hour"`
	BudgetPerHour float64 `json:"budget_per_hour"`
	// Held contains a line for each launch that a bound holds now.
	Held []string `json:"held"`
	// Backoffs are the launches that wait after failures.
	Backoffs []LaunchBackoff `json:"backoffs"`
	// Failures are the last failures of replicas, one for each model and region, newest first.
	Failures []ReplicaFailure `json:"failures"`
}

// LaunchBackoff is a model, or one of its offerings, whose next launch waits after failures.
type LaunchBackoff struct {
	// Model is empty when all models wait, Region and Offering when all regions or offerings do.
	Model    string         `json:"model"`
	Region   service.Region `json:"region"`
	Offering string         `json:"offering"`
	// Failures is the number of consecutive failures.
	Failures int       `json:"failures"`
	NextTry  time.Time `json:"next_try"`
	Reason   string    `json:"reason"` // of the last failure
	// Line is the backoff in one line.
	Line string `json:"line"`
}

// ReplicaFailure is a replica that was given up.
type ReplicaFailure struct {
	At       time.Time      `json:"at"`
	Replica  string         `json:"replica"`
	Model    string         `json:"model"`
	Region   service.Region `json:"region"`
	Offering string         `json:"offering"`
	Reason   string         `json:"reason"`
	// Log contains the last lines of its engine's log, at most MaxFailureLines, without secrets.
	Log []string `json:"log"`
}

// MaxFailureLines is the maximum number of log lines that are kept of a failed replica: enough for the
// traceback of an engine, and few enough for every snapshot.
const MaxFailureLines = 20

// Lines returns the state in lines for people: the bounds, what is held and what waits. nil has none.
func (l *Launches) Lines() []string {
	if l == nil {
		return nil
	}
	var lines []string
	if l.BudgetPerHour > 0 {
		lines = append(lines, fmt.Sprintf("budget: $%.2f/h of $%.2f/h", l.CostPerHour, l.BudgetPerHour))
	}
	if l.MaxPerHour > 0 && 4*l.LastHour >= l.MaxPerHour { // fewer are usual
		lines = append(lines, fmt.Sprintf("launches: %d in the last hour, at most %d", l.LastHour, l.MaxPerHour))
	}
	for _, held := range l.Held {
		lines = append(lines, "held: "+held)
	}
	for _, b := range l.Backoffs {
		lines = append(lines, "backoff: "+b.Line)
	}
	return lines
}

// FailureLines returns the last failures with the lines of their logs.
func (l *Launches) FailureLines(zone *time.Location) []string {
	if l == nil {
		return nil
	}
	var lines []string
	for _, f := range l.Failures {
		lines = append(lines, fmt.Sprintf("last failure of %s in %s: %s %s: %s", f.Model, f.Region, f.At.In(zone).Format(time.TimeOnly), f.Replica, f.Reason))
		for _, line := range f.Log {
			lines = append(lines, "  "+line)
		}
	}
	return lines
}
