package remote

import (
	"errors"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Call names what is asked for.
type Call string

// The calls: the methods of provision.Provider, provision.Witness and provision.Pricer.
const (
	CallOfferings   Call = "offerings"
	CallList        Call = "list"
	CallLaunch      Call = "launch"
	CallTerminate   Call = "terminate"
	CallFingerprint Call = "fingerprint"
	CallPrices      Call = "prices"
)

// request holds the argument of a call.
type request struct {
	Region  service.Region    `json:"region,omitempty"` // of offerings and prices, and of list where one region is enough
	Service string            `json:"service,omitempty"`
	Want    *provision.Want   `json:"want,omitempty"`
	Object  *provision.Object `json:"object,omitempty"`
}

// response holds the result of a call, or why there is none.
type response struct {
	Offerings   provision.Offerings `json:"offerings,omitempty"`
	Objects     []provision.Object  `json:"objects,omitempty"`
	Object      provision.Object    `json:"object,omitzero"`
	Fingerprint string              `json:"fingerprint,omitempty"`
	Prices      []provision.Price   `json:"prices,omitempty"` // also beside an error
	Error       *failure            `json:"error,omitempty"`
}

// failure is an error on the wire. Those that a caller reacts to keep their type.
type failure struct {
	Text        string                      `json:"text"` // of what is in none of the fields below
	Capacity    *provision.CapacityError    `json:"capacity,omitempty"`
	Credentials *provision.CredentialsError `json:"credentials,omitempty"`
	Owned       *provision.OwnedError       `json:"owned,omitempty"`
}

// failureOf puts an error on the wire; the cause of a typed one as its text.
func failureOf(err error) *failure {
	f := &failure{Text: err.Error()}
	cause := func(err error) {
		if err != nil {
			f.Text = err.Error()
		}
	}
	var capacity *provision.CapacityError
	var credentials *provision.CredentialsError
	var owned *provision.OwnedError
	switch {
	case errors.As(err, &capacity):
		cause(capacity.Err)
		f.Capacity = &provision.CapacityError{Offering: capacity.Offering, Scope: capacity.Scope, Code: capacity.Code}
	case errors.As(err, &credentials):
		cause(credentials.Err)
		f.Credentials = &provision.CredentialsError{Cloud: credentials.Cloud, Action: credentials.Action, Code: credentials.Code, Hint: credentials.Hint}
	case errors.As(err, &owned):
		f.Owned = owned
	}
	return f
}

// err takes an error from the wire.
func (f *failure) err() error {
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
	}
	return cause
}
