package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"skyserve/internal/telemetry"
)

// Bounds of invitations, with reasons.
const (
	maxInvites    = 16       // people who are being enrolled at once
	maxInviteBody = 32 << 10 // a chain is 2 KiB
)

// invites relays messages between an operator and an invited person. It does not interpret them.
type invites struct {
	mu   sync.Mutex
	open map[string]*invite
}

type invite struct {
	until           time.Time
	request, answer []byte // JSON documents; nil = none yet
}

const pathInvites = "/v1/invites/"

var mailboxPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

func (a *API) inviteRoutes() []route {
	request := func(i *invite) *[]byte { return &i.request }
	reply := func(i *invite) *[]byte { return &i.answer }
	return []route{
		{"PUT " + pathInvites + "{mailbox}", a.openInvite},
		{"DELETE " + pathInvites + "{mailbox}", a.closeInvite},
		{"GET " + pathInvites + "{mailbox}/request", a.readInvite(request)},
		{"PUT " + pathInvites + "{mailbox}/answer", a.writeInvite(reply)},
		// Clients without credentials may use these two; see ServeGuest.
		{"PUT " + pathInvites + "{mailbox}/request", a.writeInvite(request)},
		{"GET " + pathInvites + "{mailbox}/answer", a.readInvite(reply)},
	}
}

// ServeGuest serves clients without credentials: an invited person may request a certificate and
// fetch it. The unguessable name of the mailbox authorizes the request.
func (a *API) ServeGuest(w http.ResponseWriter, r *http.Request) {
	_, document, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, pathInvites), "/")
	allowed := r.Method == http.MethodPut && document == "request" || r.Method == http.MethodGet && document == "answer"
	if !strings.HasPrefix(r.URL.Path, pathInvites) || !allowed {
		writeError(w, http.StatusUnauthorized, "a client certificate of the service is required: commands of skyserve on an operator's machine present it ('skyserve connect' obtains one); for curl, a local service accepts plain http:// at this address")
		return
	}
	a.serveRequest(w, r, true, true)
}

// mailbox returns the invite of a request, or nil if it is not open. The lock must be held.
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
	case !mailboxPattern.MatchString(name):
		writeError(w, http.StatusBadRequest, "mailbox: must be 32 hexadecimal digits")
	case open == nil && len(a.invites.open) >= maxInvites:
		writeError(w, http.StatusTooManyRequests, fmt.Sprintf("%d invitations are open, the maximum: wait until one is used or expires", maxInvites))
	case open != nil:
		writeError(w, http.StatusConflict, "the invitation is already open")
	default:
		if a.invites.open == nil {
			a.invites.open = map[string]*invite{}
		}
		a.invites.open[name] = &invite{until: a.opts.Now().Add(telemetry.InviteTTL)}
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

// writeInvite stores a document in a mailbox. It rejects a second one.
func (a *API) writeInvite(of func(*invite) *[]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(deadlineAfter(bodyTimeout)) // as in ServeHTTP
		var document json.RawMessage
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxInviteBody)).Decode(&document); err != nil {
			writeError(w, http.StatusBadRequest, "read the message: "+err.Error())
			return
		}
		a.invites.mu.Lock()
		defer a.invites.mu.Unlock()
		switch i := a.mailbox(r); {
		case i == nil:
			writeError(w, http.StatusNotFound, "the invitation is not open: it expired, was used, or was opened at another balancer")
		case *of(i) != nil:
			writeError(w, http.StatusConflict, "the invitation was already used")
		default:
			*of(i) = document
			w.WriteHeader(http.StatusNoContent)
		}
	}
}

// readInvite responds with a document of a mailbox, or 204 if there is none yet.
func (a *API) readInvite(of func(*invite) *[]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.invites.mu.Lock()
		defer a.invites.mu.Unlock()
		switch i := a.mailbox(r); {
		case i == nil:
			writeError(w, http.StatusNotFound, "the invitation is not open")
		case *of(i) == nil:
			w.WriteHeader(http.StatusNoContent)
		default:
			writeJSON(w, http.StatusOK, json.RawMessage(*of(i)))
		}
	}
}
