package testcloud

import (
	"io"
	"net/http"
	"net/http/httptest"
)

// Direct is a transport that passes requests to a handler in this process, for any host. A connection
// that the handler breaks is an io.ErrUnexpectedEOF, as over a network.
type HandlerTransport struct{ Handler http.Handler }

// RoundTrip calls the handler.
func (d HandlerTransport) RoundTrip(r *http.Request) (answer *http.Response, err error) {
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
