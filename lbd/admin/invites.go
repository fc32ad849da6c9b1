package admin

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"skyserve/internal/telemetry"
)

// Bounds of invitations, each with its reason.
const (
	maxInvites    = 16       // people who are on their way at once
	maxInviteBody = 32 << 10 // a chain is 2 KiB
)

// invites carries what an operator and somebody who was invited say to each other. It
// understands nothing of it.
type invites struct {
	mu   sync.Mutex
	open map[string]*invite
}

type invite struct {
	until           time.Time
	request, answer []byte // documents; nil while there is none
}

const pathInvites = "/v1/invites/"

var mailboxForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

func (a *API) routeInvites() {
	a.mux.HandleFunc("PUT "+pathInvites+"{mailbox}", a.openInvite)
	a.mux.HandleFunc("DELETE "+pathInvites+"{mailbox}", a.closeInvite)
	request := func(i *invite) *[]byte { return &i.request }
	reply := func(i *invite) *[]byte { return &i.answer }
	a.mux.HandleFunc("GET "+pathInvites+"{mailbox}/request", a.readInvite(request))
	a.mux.HandleFunc("PUT "+pathInvites+"{mailbox}/answer", a.fillInvite(reply))
	// These two are for guests too: see ServeGuest.
	a.mux.HandleFunc("PUT "+pathInvites+"{mailbox}/request", a.fillInvite(request))
	a.mux.HandleFunc("GET "+pathInvites+"{mailbox}/answer", a.readInvite(reply))
}

// ServeGuest answers who has shown nothing: one who was invited may ask for a
// certificate and fetch it. The mailbox's name, which cannot be guessed, is what lets
// in.
func (a *API) ServeGuest(w http.ResponseWriter, r *http.Request) {
	_, what, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, pathInvites), "/")
	asks := r.Method == http.MethodPut && what == "request" || r.Method == http.MethodGet && what == "answer"
	if !strings.HasPrefix(r.URL.Path, pathInvites) || !asks {
		refuse(w, http.StatusUnauthorized, "this address is for those with a certificate of the service: see skyserve connect")
		return
	}
	a.serve(w, r, true, true)
}

// mailbox is the invite of a request, with the lock held; nil when it is not open.
func (a *API) mailbox(r *http.Request) *invite {
	now := a.opts.Now()
	for name, i := range a.invites.open {
		if now.After(i.until) {
			delete(a.invites.open, name)
		}
	}
	return a.invites.open[r.PathValue("mailbox")]
}

func (a *API) openInvite(w http.ResponseWriter, r *http.Request) {
	a.invites.mu.Lock()
	defer a.invites.mu.Unlock()
	name := r.PathValue("mailbox")
	switch open := a.mailbox(r); {
	case !mailboxForm.MatchString(name):
		refuse(w, http.StatusBadRequest, "a mailbox is 32 hexadecimal digits")
	case open == nil && len(a.invites.open) >= maxInvites:
		refuse(w, http.StatusTooManyRequests, "too many invitations are open")
	case open != nil:
		refuse(w, http.StatusConflict, "the invitation is open already")
	default:
		if a.invites.open == nil {
			a.invites.open = map[string]*invite{}
		}
		a.invites.open[name] = &invite{until: a.opts.Now().Add(telemetry.InviteLife)}
		a.opts.Logger.Info("invitation opened")
		w.WriteHeader(http.StatusNoContent)
	}
}

func (a *API) closeInvite(w http.ResponseWriter, r *http.Request) {
	a.invites.mu.Lock()
	defer a.invites.mu.Unlock()
	delete(a.invites.open, r.PathValue("mailbox"))
	w.WriteHeader(http.StatusNoContent)
}

// fillInvite puts a document into a mailbox, once.
func (a *API) fillInvite(of func(*invite) *[]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(within(bodyTimeout)) // as in ServeHTTP
		var document json.RawMessage
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxInviteBody)).Decode(&document); err != nil {
			refuse(w, http.StatusBadRequest, "reading the message: "+err.Error())
			return
		}
		a.invites.mu.Lock()
		defer a.invites.mu.Unlock()
		switch i := a.mailbox(r); {
		case i == nil:
			refuse(w, http.StatusNotFound, "no such invitation is open: it ended, was used, or is open at another balancer")
		case *of(i) != nil:
			refuse(w, http.StatusConflict, "the invitation was used already")
		default:
			*of(i) = document
			w.WriteHeader(http.StatusNoContent)
		}
	}
}

// readInvite answers a document of a mailbox, or that there is none yet.
func (a *API) readInvite(of func(*invite) *[]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.invites.mu.Lock()
		defer a.invites.mu.Unlock()
		switch i := a.mailbox(r); {
		case i == nil:
			refuse(w, http.StatusNotFound, "no such invitation is open")
		case *of(i) == nil:
			w.WriteHeader(http.StatusNoContent)
		default:
			answer(w, http.StatusOK, json.RawMessage(*of(i)))
		}
	}
}
