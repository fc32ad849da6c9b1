package agent

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"skyserve/internal/identity"
)

const (
	maxBody = 4 << 20 // fits a balancer's configuration with thousands of replicas
	// MaxLogLines is the maximum number of log lines in a response.
	MaxLogLines = 10_000
)

// Paths of the agent's API.
const (
	pathStatus      = "/v1/status"
	pathEnrolment   = "/v1/enrolment"
	pathDeployment  = "/v1/deployment"
	pathCertificate = "/v1/certificate"
	pathRevoked     = "/v1/revoked"
	pathDrain       = "/v1/drain"
	pathLogs        = "/v1/logs/"
	pathCloud       = "/v1/cloud/"
)

// enrolment is the body of the one enrolment request.
type enrolment struct {
	// Chain is the machine's certificate with its issuers, in PEM.
	Chain      string     `json:"chain"`
	Deployment Deployment `json:"deployment"`
}

// renewal is a new certificate for the same key.
type renewal struct {
	Chain string `json:"chain"`
}

// revocation is a revocation list in PEM.
type revocation struct {
	List string `json:"list"`
}

// operatorTLS returns the TLS configuration for operators and the controller. It verifies them in
// the same way before and after the enrolment: against the CA fingerprint in the initial
// configuration. Only the certificate that the machine presents differs.
func (a *Agent) operatorTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if p := a.currentCredentials(); p != nil {
				return p.Certificate()
			}
			return a.selfSigned, nil
		},
		VerifyConnection: func(s tls.ConnectionState) error {
			root, err := identity.RootOf(s.PeerCertificates, a.opts.Owner)
			if err != nil {
				return err
			}
			name, err := identity.Verify(s.PeerCertificates, root, a.opts.Now(), x509.ExtKeyUsageClientAuth)
			if err == nil && !slices.Contains([]identity.Role{identity.Operator, identity.Controller}, name.Role) {
				err = fmt.Errorf("%w: must be an operator or the controller, got %s", identity.ErrRole, name)
			}
			if err == nil && a.isPeerRevoked(&s) {
				err = fmt.Errorf("%w: %s", identity.ErrRevoked, name)
			}
			return err
		},
	}
}

func (a *Agent) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathStatus, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, a.Status()) })
	mux.HandleFunc("PUT "+pathEnrolment, func(w http.ResponseWriter, r *http.Request) { handlePut(w, r, a.enrol) })
	mux.HandleFunc("PUT "+pathDeployment, func(w http.ResponseWriter, r *http.Request) { handlePut(w, r, a.deploy) })
	mux.HandleFunc("PUT "+pathCertificate, func(w http.ResponseWriter, r *http.Request) { handlePut(w, r, a.renew) })
	mux.HandleFunc("PUT "+pathRevoked, func(w http.ResponseWriter, r *http.Request) { handlePut(w, r, a.setRevoked) })
	mux.HandleFunc("POST "+pathDrain, func(w http.ResponseWriter, r *http.Request) {
		who, _ := identity.PeerName(r.TLS) // the listener has verified the name
		a.drain("requested by " + who.ID)
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET "+pathLogs+"{unit}", a.serveLogs)
	mux.HandleFunc("POST "+pathCloud+"{call}", a.serveCloud)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case a.isPeerRevoked(r.TLS): // since the connection was opened
			writeError(w, http.StatusForbidden, identity.ErrRevoked)
		case r.Method == http.MethodConnect: // its target is not a path
			a.serveRelay(w, r)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// conflictError is the error of a request that the agent's state does not allow; the response is 409.
type conflictError struct{ error }

// handlePut decodes a body, calls do with it and writes the response.
func handlePut[T any](w http.ResponseWriter, r *http.Request, do func(T) error) {
	var body T
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&body); err != nil {
		writeError(w, http.StatusBadRequest, fmt.Errorf("reading the request: %w", withoutValue(err)))
		return
	}
	var c conflictError
	switch err := do(body); {
	case errors.As(err, &c):
		writeError(w, http.StatusConflict, err)
	case err != nil:
		writeError(w, http.StatusBadRequest, err)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// withoutValue removes values of the body, which may be secret, from an error.
func withoutValue(err error) error {
	var typed *json.UnmarshalTypeError
	if errors.As(err, &typed) {
		return fmt.Errorf("%s must be a %s, got a %s", typed.Field, typed.Type, typed.Value)
	}
	return err
}

// enrol enrols the machine. A second enrolment is a conflict.
func (a *Agent) enrol(e enrolment) error {
	a.changeMu.Lock()
	defer a.changeMu.Unlock()
	if a.currentCredentials() != nil {
		return conflictError{fmt.Errorf("enrolling %s: the machine is already enrolled", a.opts.Name.ID)}
	}
	chain, err := a.parseVerifiedChain(e.Chain)
	if err == nil {
		err = e.Deployment.Check()
	}
	if err != nil {
		return fmt.Errorf("enrolling %s: %w", a.opts.Name.ID, err)
	}
	// The certificate is written last: with it, the machine is enrolled.
	if err := identity.WriteFile(a.path(FileCA), identity.EncodeChain(chain[len(chain)-1:])); err != nil {
		return err
	}
	if err := a.storeDeployment(e.Deployment); err != nil {
		return err
	}
	if err := a.setCertificate(chain); err != nil {
		return err
	}
	a.signalChange()
	return nil
}

// parseVerifiedChain parses a chain and verifies that the service's CA signed it.
func (a *Agent) parseVerifiedChain(text string) ([]*x509.Certificate, error) {
	chain, err := identity.ParseChain([]byte(text))
	if err != nil {
		return nil, err
	}
	root, err := identity.RootOf(chain, a.opts.Owner)
	if err != nil {
		return nil, err
	}
	if !chain[len(chain)-1].Equal(root) {
		return nil, errors.New("the certificate chain must end with the service's CA")
	}
	_, err = identity.Verify(chain, root, a.opts.Now(), x509.ExtKeyUsageServerAuth)
	return chain, err
}

// setCertificate stores a chain and makes it the machine's identity.
func (a *Agent) setCertificate(chain []*x509.Certificate) error {
	party, err := a.credentialsFor(chain)
	if err != nil {
		return err
	}
	if err := identity.WriteFile(a.path(FileCert), identity.EncodeChain(chain)); err != nil {
		return err
	}
	a.mu.Lock()
	a.credentials, a.expires, a.issuer = party, chain[0].NotAfter, issuerOf(chain)
	a.mu.Unlock()
	a.log.Info("certificate installed", "name", a.opts.Name.String(), "expires", chain[0].NotAfter)
	return nil
}

// renew replaces the certificate without restarting units.
func (a *Agent) renew(e renewal) error {
	a.changeMu.Lock()
	defer a.changeMu.Unlock()
	if a.currentCredentials() == nil {
		return conflictError{errNotEnrolled}
	}
	chain, err := a.parseVerifiedChain(e.Chain)
	if err == nil {
		err = a.setCertificate(chain)
	}
	if err != nil {
		return fmt.Errorf("renewing the certificate of %s: %w", a.opts.Name.ID, err)
	}
	return nil
}

var errNotEnrolled = errors.New("this machine is not enrolled; run 'skyserve up'")

// deploy replaces the desired deployment.
func (a *Agent) deploy(d Deployment) error {
	a.changeMu.Lock()
	defer a.changeMu.Unlock()
	if a.currentCredentials() == nil {
		return conflictError{errNotEnrolled}
	}
	if err := d.Check(); err != nil {
		return err
	}
	if err := a.storeDeployment(d); err != nil {
		return err
	}
	a.signalChange()
	return nil
}

// storeDeployment stores a deployment as the desired one.
func (a *Agent) storeDeployment(d Deployment) error {
	text, err := json.Marshal(d)
	if err == nil {
		err = identity.WriteFile(a.path(fileDeployment), text)
	}
	if err != nil {
		return fmt.Errorf("storing the deployment: %w", err)
	}
	a.mu.Lock()
	a.staleFiles = slices.AppendSeq(a.staleFiles, maps.Keys(filesOf(a.desired)))
	a.desired = d
	a.phase, a.reason = PhasePreparing, "" // the current phase is of the previous deployment
	a.starts.forgetFailure()
	a.mu.Unlock()
	return nil
}

// Status returns the status of the machine.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Status{
		Name: a.opts.Name.String(), Phase: a.phase, Reason: a.reason, Enrolled: a.credentials != nil,
		Units: slices.Clone(a.units), Expires: a.expires, InterruptionAt: a.interruptionAt, RebalanceAt: a.rebalanceAt,
		Revoked: a.revoked.Number(), Issuer: a.issuer, GPUError: a.gpuError, GPUs: a.gpus, GPUStats: a.gpuStats,
	}
	if a.credentials != nil {
		s.Revision = a.desired.Revision
	}
	s.Start, s.Failure = a.starts.record(a.opts.Now())
	if a.proxy != nil {
		s.InFlight = int(a.proxy.inFlight.Load())
	}
	if a.phase == PhaseReady {
		s.Version = a.version
	}
	if a.draining != "" {
		s.Phase, s.Reason = PhaseDraining, a.draining
	}
	if !a.interruptionAt.IsZero() {
		s.Phase, s.Reason = PhaseInterrupted, a.interruptionReason()
	}
	return s
}

// serveLogs returns the last lines of a unit's log.
func (a *Agent) serveLogs(w http.ResponseWriter, r *http.Request) {
	name, lines := r.PathValue("unit"), 100
	if text := r.URL.Query().Get("lines"); text != "" {
		var err error
		if lines, err = strconv.Atoi(text); err != nil || lines < 1 || lines > MaxLogLines {
			writeError(w, http.StatusBadRequest, fmt.Errorf("lines must be 1 to %d, got %q", MaxLogLines, text))
			return
		}
	}
	a.mu.Lock()
	i := slices.IndexFunc(a.desired.Units, func(u Unit) bool { return u.Name == name })
	var unit Unit
	if i >= 0 {
		unit = a.desired.Units[i]
	}
	a.mu.Unlock()
	if i < 0 {
		writeError(w, http.StatusNotFound, fmt.Errorf("unknown unit %q", name))
		return
	}
	state, err := a.opts.Runner.Inspect(r.Context(), unit, lines)
	if err != nil {
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	for _, line := range state.Lines {
		fmt.Fprintln(w, line)
	}
}

// writeJSON writes a JSON document. It ignores errors: the client may have disconnected.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// writeError writes an error in the form of the balancers' admin API.
func writeError(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, map[string]any{"error": map[string]string{"message": err.Error()}})
}
