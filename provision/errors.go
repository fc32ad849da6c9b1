package provision

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// ErrCannotReload says that an object cannot take up another configuration while
// it runs: it does not answer, or does not know how.
var ErrCannotReload = errors.New("it cannot reload")

// PortTakenError is a port that an object needs and somebody else holds.
type PortTakenError struct {
	Holder  string // who has it, as far as that is known; empty = another program
	Addr    string // host:port
	ID      string // the object that needs it
	Purpose string // what the object needs it for: "public", "admin", "store", ...
	Setting string // the setting of service.yaml that moves it
}

// Error names the address, who wanted it for what, and the way out.
func (e *PortTakenError) Error() string {
	return fmt.Sprintf("%s is taken by %s: %s needs it (%s); set %s in service.yaml to another port",
		e.Addr, cmp.Or(e.Holder, "another program"), e.ID, e.Purpose, e.Setting)
}

// StartError is an object that ended before it was up.
type StartError struct {
	ID   string
	Err  error    // how it ended
	Log  []string // the last lines that it wrote
	File string   // where the whole log is
}

// Error says what ended, how, and its last words.
func (e *StartError) Error() string {
	msg := fmt.Sprintf("starting %s: %v", e.ID, e.Err)
	if len(e.Log) > 0 {
		msg += "\n  " + strings.Join(e.Log, "\n  ")
	}
	if e.File != "" {
		msg += "\n  (log: " + e.File + ")"
	}
	return msg
}

// Unwrap gives the cause.
func (e *StartError) Unwrap() error { return e.Err }

// LeftoverError lists what is still there after everything was told to go.
type LeftoverError struct {
	Service string
	Left    []string // each names a thing and where it is
}

// Error lists the leftovers.
func (e *LeftoverError) Error() string {
	return fmt.Sprintf("removing %s: %d left over:\n  %s", e.Service, len(e.Left), strings.Join(e.Left, "\n  "))
}

// SpecError is a service.yaml that cannot be carried out, although it is well formed.
type SpecError struct{ Err error }

// Error says why.
func (e *SpecError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *SpecError) Unwrap() error { return e.Err }
