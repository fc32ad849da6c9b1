package remote

import (
	"errors"

	"skyserve/internal/service"
	"skyserve/provision"
)

// CallKind is the name of a remote call.
type CallKind string

// The calls: the methods of provision.Provider, provision.KeyAttestor, provision.Pricer,
// provision.ReservationReader, provision.InterruptionReporter, provision.CapacityAdvisor and provision.RecordUpdater.
const (
	CallOfferings   CallKind = "offerings"
	CallList        CallKind = "list"
	CallLaunch      CallKind = "launch"
	CallTerminate   CallKind = "terminate"
	CallFingerprint CallKind = "fingerprint"
	CallPrices      CallKind = "prices"

	CallReservations  CallKind = "reservations"
	CallInterruptions CallKind = "interruptions"
	CallAdvice        CallKind = "advice"
	CallMoveRecords   CallKind = "move-records"
)

// request holds the argument of a call.
type request struct {
	Region  service.Region     `json:"region,omitempty"` // for offerings and prices, and for list of one region
	Service string             `json:"service,omitempty"`
	Want    *provision.Desired `json:"want,omitempty"`
	Object  *provision.Object  `json:"object,omitempty"`
	IDs     []string           `json:"ids,omitempty"` // for reservations
	// Offerings and Count are for advice.
	Offerings provision.Offerings `json:"offerings,omitempty"`
	Count     int                 `json:"count,omitempty"`
	// Name and Zone, the id of its hosted zone, are for move-records.
	Name *provision.PublicName `json:"name,omitempty"`
	Zone string                `json:"zone,omitempty"`
}

// response holds the result or the error of a call.
type response struct {
	Offerings   provision.Offerings `json:"offerings,omitempty"`
	Objects     []provision.Object  `json:"objects,omitempty"`
	Object      provision.Object    `json:"object,omitzero"`
	Fingerprint string              `json:"fingerprint,omitempty"`
	Prices      []provision.Price   `json:"prices,omitempty"` // also set with an error
	Error       *wireError          `json:"error,omitempty"`

	Reservations []provision.Reservation    `json:"reservations,omitempty"`
	Advice       []provision.CapacityAdvice `json:"advice,omitempty"`
}

// wireError is the encoding of an error. The types of errors that callers distinguish are preserved.
type wireError struct {
	Text        string                      `json:"text"` // the message of an untyped error, or the cause of a typed one
	Capacity    *provision.CapacityError    `json:"capacity,omitempty"`
	Credentials *provision.CredentialsError `json:"credentials,omitempty"`
	Owned       *provision.OwnedError       `json:"owned,omitempty"`
	Throttled   *provision.ThrottledError   `json:"throttled,omitempty"`
}

// newWireError encodes an error; the cause of a typed error becomes its text.
func newWireError(err error) *wireError {
	f := &wireError{Text: err.Error()}
	cause := func(err error) {
		if err != nil {
			f.Text = err.Error()
		}
	}
	var capacity *provision.CapacityError
	var credentials *provision.CredentialsError
	var owned *provision.OwnedError
	var throttled *provision.ThrottledError
	switch {
	case errors.As(err, &capacity):
		cause(capacity.Err)
		f.Capacity = &provision.CapacityError{Offering: capacity.Offering, Scope: capacity.Scope, Code: capacity.Code}
	case errors.As(err, &credentials):
		cause(credentials.Err)
		f.Credentials = &provision.CredentialsError{Cloud: credentials.Cloud, Action: credentials.Action, Code: credentials.Code, Hint: credentials.Hint}
	case errors.As(err, &owned):
		f.Owned = owned
	case errors.As(err, &throttled):
		cause(throttled.Err)
		f.Throttled = &provision.ThrottledError{Cloud: throttled.Cloud, Code: throttled.Code}
	}
	return f
}

// toError decodes the error.
func (f *wireError) toError() error {
	cause := errors.New(f.Text)
	switch {
	case f.Capacity != nil:
		f.Capacity.Err = cause
		return f.Capacity
	case f.Credentials != nil:
		f.Credentials.Err = cause
		return f.Credentials
	case f.Owned != nil:
		return f.Owned
	case f.Throttled != nil:
		f.Throttled.Err = cause
		return f.Throttled
	}
	return cause
}
