package machines

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"skyserve/internal/testcloud"
)

// noticePeriod is the time between AWS's interruption notice and the interruption.
const noticePeriod = 2 * time.Minute

// credentialLifetime is the lifetime of the credentials from the metadata server: the maximum of AWS.
const credentialLifetime = 6 * time.Hour

// sessionToken is the token of IMDSv2 that the metadata server accepts.
const sessionToken = "token"

// rolePath is the metadata path of the name of a machine's IAM role in AWS. The role's credentials are below it.
const rolePath = "latest/meta-data/iam/security-credentials/"

// accountPath is the metadata path of a machine's service account in Google Cloud.
const accountPath = "computeMetadata/v1/instance/service-accounts/default/"

// metadataServer is the metadata server of one machine.
type metadataServer struct {
	host  string // and port
	close func()
}

// startMetadataServer starts the metadata server of a machine, at the machine's own address, which identifies the
// caller. It is the only source of a machine's credentials.
func (c *Clouds) startMetadataServer(m testcloud.BootingMachine) (metadataServer, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(m.Private, "0"))
	if err != nil {
		return metadataServer{}, err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.serveMetadata(w, r, m.ID) })}
	go func() { _ = server.Serve(ln) }() // returns after close
	return metadataServer{ln.Addr().String(), func() { _ = server.Close() }}, nil
}

// serveMetadata serves a metadata request of a machine, by the cloud's id.
func (c *Clouds) serveMetadata(w http.ResponseWriter, r *http.Request, name string) {
	path := strings.TrimPrefix(r.URL.Path, "/")
	if role := c.AWS.MachineRole(name); role != "" && strings.HasPrefix(path, rolePath) {
		if r.Header.Get("X-Aws-Ec2-Metadata-Token") != sessionToken { // as with IMDSv2 only
			http.Error(w, "no session token", http.StatusUnauthorized)
			return
		}
		c.serveRole(w, name, role, strings.TrimPrefix(path, rolePath))
		return
	}
	if strings.HasPrefix(path, "computeMetadata/") {
		w.Header().Set("Metadata-Flavor", "Google")
	}
	c.mu.Lock()
	interrupted, rebalanced := c.interrupted[name], c.rebalanced[name]
	c.mu.Unlock()
	switch {
	case path == "latest/api/token" && (r.Method != http.MethodPut || r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds") == ""):
		http.Error(w, "requires PUT and a lifetime", http.StatusBadRequest)
	case path == "latest/api/token":
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		fmt.Fprint(w, sessionToken)
	case path == "latest/meta-data/spot/instance-action" && interrupted:
		fmt.Fprintf(w, `{"action":"terminate","time":%q}`, time.Now().Add(noticePeriod).UTC().Format(time.RFC3339))
	case path == "latest/meta-data/events/recommendations/rebalance" && rebalanced:
		fmt.Fprintf(w, `{"noticeTime":%q}`, time.Now().UTC().Format(time.RFC3339))
	case path == "computeMetadata/v1/project/project-id":
		fmt.Fprint(w, c.opts.Project)
	case path == accountPath+"token":
		c.serveToken(w, name)
	case path == accountPath+"identity":
		c.serveIdentity(w, r, name)
	case path == accountPath+"email":
		email, _ := c.Google.MachineCredentials(name)
		fmt.Fprint(w, email)
	case path == "computeMetadata/v1/instance/preempted":
		fmt.Fprint(w, strings.ToUpper(fmt.Sprint(interrupted)))
	default:
		http.NotFound(w, r)
	}
}

// serveRole returns the name or the credentials of a machine's IAM role in AWS.
func (c *Clouds) serveRole(w http.ResponseWriter, machine, role, requested string) {
	switch requested {
	case "":
		fmt.Fprint(w, role)
	case role:
		key, secret, token := c.AWS.MachineCredentials(machine)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{ // a caller that has disconnected retries
			"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": time.Now().UTC(), "Expiration": time.Now().Add(credentialLifetime).UTC(),
			"AccessKeyId": key, "SecretAccessKey": secret, "Token": token,
		})
	default:
		http.Error(w, "no such role", http.StatusNotFound)
	}
}

// serveIdentity returns an identity token of a machine's service account.
func (c *Clouds) serveIdentity(w http.ResponseWriter, r *http.Request, machine string) {
	audience := r.URL.Query().Get("audience")
	token := c.Google.IdentityToken(machine, audience)
	if audience == "" || token == "" || r.Header.Get("Metadata-Flavor") != "Google" {
		http.Error(w, "the machine has no service account, or the request no audience", http.StatusBadRequest)
		return
	}
	fmt.Fprint(w, token)
}

// serveToken returns an access token for a machine's service account in Google Cloud.
func (c *Clouds) serveToken(w http.ResponseWriter, machine string) {
	email, token := c.Google.MachineCredentials(machine)
	if email == "" {
		http.Error(w, "the machine has no service account", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": int(time.Hour.Seconds())}) // a caller that has disconnected retries
}
