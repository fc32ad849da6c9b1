package admin

import (
	"fmt"
	"net/http"
	"time"
)

// eventsTick is the interval of keep-alive comments, so that proxies do not close a quiet stream.
const eventsTick = 15 * time.Second

// serveEvents streams decisions as they are made (server-sent events). The number of clients is
// bounded, which bounds the buffered events. A client that does not read is disconnected.
func (a *API) serveEvents(w http.ResponseWriter, r *http.Request) {
	defer a.watchers.Add(-1)
	if a.watchers.Add(1) > maxWatchers {
		writeError(w, http.StatusServiceUnavailable, fmt.Sprintf("%d clients already receive events, the maximum: disconnect one of them first", maxWatchers))
		return
	}
	events, cancel := a.opts.Decisions.Subscribe()
	defer cancel()
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if out.Flush() != nil {
		return
	}
	tick := time.NewTicker(eventsTick)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-r.Context().Done():
			return
		case event, open := <-events:
			if !open {
				return
			}
			_ = out.SetWriteDeadline(deadlineAfter(writeTimeout))
			_, err = fmt.Fprintf(w, "event: decision\ndata: %s\n\n", event)
		case <-tick.C:
			_ = out.SetWriteDeadline(deadlineAfter(writeTimeout))
			_, err = fmt.Fprint(w, ": keep-alive\n\n")
		}
		if err != nil || out.Flush() != nil {
			return
		}
	}
}
