package admin

import (
	"fmt"
	"net/http"
	"time"
)

// eventsTick keeps proxies from taking a quiet stream for a dead one.
const eventsTick = 15 * time.Second

// serveEvents streams decisions as they are made (server-sent events), to so many
// clients that what waits for them is bounded. One that takes none is cut off.
func (a *API) serveEvents(w http.ResponseWriter, r *http.Request) {
	defer a.watchers.Add(-1)
	if a.watchers.Add(1) > maxWatchers {
		refuse(w, http.StatusServiceUnavailable, fmt.Sprintf("%d clients follow the events already; end one of these first", maxWatchers))
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
	pulse := time.NewTicker(eventsTick)
	defer pulse.Stop()
	for {
		var err error
		select {
		case <-r.Context().Done():
			return
		case event, open := <-events:
			if !open {
				return
			}
			_ = out.SetWriteDeadline(within(writeTimeout))
			_, err = fmt.Fprintf(w, "event: decision\ndata: %s\n\n", event)
		case <-pulse.C:
			_ = out.SetWriteDeadline(within(writeTimeout))
			_, err = fmt.Fprint(w, ": still here\n\n")
		}
		if err != nil || out.Flush() != nil {
			return
		}
	}
}
