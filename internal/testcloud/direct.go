package testcloud

import (
	"io"
	"net/http"
	"net/http/httptest"
)

// Direct is a transport that carries requests to a handler in this process, whatever
// host they are for. A connection that a fake cuts is an io.ErrUnexpectedEOF, as over
// a network.
type Direct struct{ Handler http.Handler }

// RoundTrip has the handler answer.
func (d Direct) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	defer func() {
		if cut := recover(); cut == http.ErrAbortHandler { //nolint:errorlint // a panic's value, compared as net/http does
			answer, err = nil, io.ErrUnexpectedEOF
		} else if cut != nil {
			panic(cut)
		}
	}()
	received := r.Clone(r.Context()) // a handler may change what it gets
	if received.Body == nil {
		received.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	d.Handler.ServeHTTP(w, received)
	return w.Result(), nil
}
