package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/proxy"
)

// maxWorkerBody bounds the body of POST /workers; a typical one has 300 bytes.
const maxWorkerBody = 64 << 10

// maxDrainedBy bounds the name of the program that drains a replica, which is stored and listed.
const maxDrainedBy = 64

func (a *API) workerRoutes() []route {
	return []route{
		{"GET /workers", a.listWorkers},
		{"POST /workers", a.addWorker},
		{"DELETE /workers/{id}", a.removeWorker},
		{"POST /workers/{id}/drain", a.drainWorker},
		{"POST /add_worker", a.addByURL},
		{"POST /remove_worker", a.removeByURL},
		{"GET /list_workers", a.listURLs},
	}
}

func (a *API) listWorkers(w http.ResponseWriter, _ *http.Request) {
	workers := []telemetry.Worker{}
	for _, r := range a.opts.Workers.List() {
		worker := telemetry.Worker{ReplicaConfig: r.ReplicaConfig, State: r.State, Reason: r.Reason, DrainedBy: r.DrainedBy, Origin: r.Origin}
		if r.View != nil {
			worker.Outstanding = r.View.Outstanding
		}
		workers = append(workers, worker)
	}
	writeJSON(w, http.StatusOK, map[string]any{"workers": workers})
}

// listURLs lists the workers, as in SGLang's API.
func (a *API) listURLs(w http.ResponseWriter, _ *http.Request) {
	urls := []string{}
	for _, r := range a.opts.Workers.List() {
		urls = append(urls, r.URL)
	}
	writeJSON(w, http.StatusOK, map[string]any{"urls": urls})
}

func (a *API) addWorker(w http.ResponseWriter, r *http.Request) {
	var cfg service.ReplicaConfig
	_ = http.NewResponseController(w).SetReadDeadline(deadlineAfter(bodyTimeout)) // as in ServeHTTP
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxWorkerBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&cfg); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			writeError(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("reading the replica: the body must have at most %d bytes", large.Limit))
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			writeError(w, http.StatusRequestTimeout, fmt.Sprintf("reading the replica: no complete body within %s", bodyTimeout))
			return
		}
		writeError(w, http.StatusBadRequest, "reading the replica: "+err.Error())
		return
	}
	a.attachWorker(w, r, cfg, false)
}

// addByURL attaches a replica, as in SGLang's API. A replica that is attached with this URL, under any
// id, is attached again with its own configuration, which ends its drain.
func (a *API) addByURL(w http.ResponseWriter, r *http.Request) {
	cfg := service.ReplicaConfig{URL: r.URL.Query().Get("url")}
	if attached, known := a.replicaAt(cfg.URL); known {
		cfg = attached
	}
	if key := r.URL.Query().Get("api_key"); key != "" {
		cfg.APIKey = key
	}
	a.attachWorker(w, r, cfg, true)
}

// replicaAt returns the attached replica with a URL.
func (a *API) replicaAt(url string) (service.ReplicaConfig, bool) {
	for _, rep := range a.opts.Workers.List() {
		if service.BaseURL(rep.URL) == service.BaseURL(url) {
			return rep.ReplicaConfig, true
		}
	}
	return service.ReplicaConfig{}, false
}

// attachWorker validates the URL of a replica and attaches it.
func (a *API) attachWorker(w http.ResponseWriter, r *http.Request, cfg service.ReplicaConfig, nearOnly bool) {
	u, err := ReplicaURL(cfg.URL)
	if err == nil {
		err = a.checkAddress(r.Context(), u.Hostname(), nearOnly)
	}
	if err == nil {
		err = separateKey(&cfg)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	if cfg.ID == "" {
		cfg.ID = u.Host
	}
	added, err := a.opts.Workers.Add(cfg)
	switch {
	case errors.Is(err, proxy.ErrOlderEpoch) || errors.Is(err, ErrDiscovered):
		writeError(w, http.StatusConflict, err.Error())
	case err != nil:
		writeError(w, http.StatusBadRequest, err.Error())
	case added:
		a.opts.Logger.Info("replica attached", "replica", cfg.ID, "url", cfg.URL, "epoch", cfg.Epoch)
		if cfg.Epoch == 0 { // by hand: the controller records its own changes
			a.recordManualChange(r, telemetry.EventAttach, cfg.ID, "attached "+cfg.ID)
		}
		writeJSON(w, http.StatusCreated, map[string]any{"id": cfg.ID, "added": true})
	default:
		writeJSON(w, http.StatusOK, map[string]any{"id": cfg.ID, "added": false})
	}
}

// separateKey moves an API key, which SGLang's API passes in the place of its source, to ReplicaConfig.Key.
func separateKey(cfg *service.ReplicaConfig) (err error) {
	if cfg.APIKey == "" || service.IsSecretRef(cfg.APIKey) {
		return nil
	}
	if cfg.Key, err = service.ParseBearerKey(cfg.APIKey); err != nil {
		return fmt.Errorf("api_key: %w", err)
	}
	cfg.APIKey = ""
	return nil
}

// ReplicaURL parses the base URL of a replica. It rejects URLs that may reach an unintended host,
// or that contain a secret that logs and snapshots would show.
func ReplicaURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case raw == "":
		return nil, errors.New("url: is required")
	case err != nil:
		return nil, errors.New("url: must be a URL such as http://10.0.0.7:8000" + withScheme(raw))
	case u.User != nil:
		return nil, errors.New("url: must not contain a user or password")
	case u.RawQuery != "" || u.Fragment != "":
		u.RawQuery, u.Fragment = "", "" // a query may contain a key
		return nil, fmt.Errorf("url: must be a base URL without query, such as %s", quoteClipped(u.String()))
	case u.Scheme != "http" && u.Scheme != "https" && strings.Contains(raw, "@"): // a password may precede it
		return nil, errors.New("url: must be http://HOST:PORT or https://HOST:PORT, without a user or password")
	case u.Scheme != "http" && u.Scheme != "https" && withScheme(raw) != "":
		return nil, errors.New("url: must be http://HOST:PORT or https://HOST:PORT" + withScheme(raw))
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("url: must be http://HOST:PORT or https://HOST:PORT, got %s", quoteClipped(raw))
	case u.Hostname() == "":
		return nil, fmt.Errorf("url: must contain a host, got %s", quoteClipped(raw))
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); u.Port() != "" && (err != nil || port == 0) {
		return nil, fmt.Errorf("url: must have a port from 1 to 65535, got %s", quoteClipped(raw))
	}
	if above, below := service.AboveV1(raw); below {
		return nil, fmt.Errorf("url: must be the URL above /v1, because requests add /v1, got %s; write %s", quoteClipped(raw), above)
	}
	return u, nil
}

// withScheme names a value that is HOST:PORT, in an error, and suggests its URL; it is empty for other values, which may
// contain a password.
func withScheme(raw string) string {
	host, port, err := net.SplitHostPort(raw)
	if _, invalid := strconv.ParseUint(port, 10, 16); err != nil || invalid != nil || host == "" || strings.ContainsAny(host, "@/?# ") {
		return ""
	}
	return fmt.Sprintf(", got %s; write http://%s", quoteClipped(raw), raw)
}

func (a *API) removeWorker(w http.ResponseWriter, r *http.Request) {
	var epoch uint64
	if text := r.URL.Query().Get("epoch"); text != "" {
		var err error
		if epoch, err = strconv.ParseUint(text, 10, 64); err != nil {
			writeError(w, http.StatusBadRequest, "epoch must be a whole number, got "+quoteClipped(text))
			return
		}
	}
	a.detachWorker(w, r, r.PathValue("id"), epoch)
}

// removeByURL detaches a replica, as in SGLang's API.
func (a *API) removeByURL(w http.ResponseWriter, r *http.Request) {
	raw := r.URL.Query().Get("url")
	if rep, known := a.replicaAt(raw); known {
		a.detachWorker(w, r, rep.ID, 0)
		return
	}
	writeError(w, http.StatusNotFound, "no replica with the URL "+quoteClipped(raw))
}

func (a *API) detachWorker(w http.ResponseWriter, r *http.Request, id string, epoch uint64) {
	removed, err := a.opts.Workers.Remove(id, epoch)
	switch {
	case errors.Is(err, proxy.ErrOlderEpoch) || errors.Is(err, ErrDiscovered):
		writeError(w, http.StatusConflict, err.Error())
	case err != nil:
		writeError(w, http.StatusBadRequest, err.Error())
	case !removed:
		writeError(w, http.StatusNotFound, "no replica with the ID "+quoteClipped(id))
	default:
		a.opts.Logger.Info("replica detached", "replica", id, "epoch", epoch)
		if epoch == 0 {
			a.recordManualChange(r, telemetry.EventDetach, id, "detached "+id)
		}
		writeJSON(w, http.StatusOK, map[string]any{"id": id, "removed": true})
	}
}

func (a *API) drainWorker(w http.ResponseWriter, r *http.Request) {
	id, by := r.PathValue("id"), r.URL.Query().Get("by")
	if len(by) > maxDrainedBy {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("by: must have at most %d bytes, got %d", maxDrainedBy, len(by)))
		return
	}
	if !a.opts.Workers.Drain(id, by) {
		writeError(w, http.StatusNotFound, "no replica with the ID "+quoteClipped(id))
		return
	}
	a.opts.Logger.Info("replica draining", "replica", id, "by", by)
	if by == "" {
		a.recordManualChange(r, telemetry.EventDrain, id, "draining "+id)
	}
	writeJSON(w, http.StatusOK, map[string]any{"id": id, "draining": true})
}
