package testcloud

import (
	"io"
	"net/http"
	"net/http/httptest"
)

// HandlerTransport is a transport that passes requests for any host to a handler in this process. If the
// handler drops the connection, the error is io.ErrUnexpectedEOF, as over a network.
type HandlerTransport struct{ Handler http.Handler }

// RoundTrip calls the handler.
func (d HandlerTransport) RoundTrip(r *http.Request) (response *http.Response, err error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	defer func() {
		if value := recover(); value == http.ErrAbortHandler { //nolint:errorlint // a panic's value, compared as net/http does
			response, err = nil, io.ErrUnexpectedEOF
		} else if value != nil {
			panic(value)
		}
	}()
	received := r.Clone(r.Context()) // a handler may change its request
	if received.Body == nil {
		received.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	d.Handler.ServeHTTP(w, received)
	return w.Result(), nil
}
