
# authorize prints the address of skyserve as a configuration of curl, with an access token of this machine's
# service account. The token appears in no command line. A new permission takes effect within minutes: until
# then the download is denied, and systemd runs this script again.
authorize() {
	python3 - '@URL@' <<'EOF'
import json, os, sys, urllib.request

host = os.environ.get("GCE_METADATA_HOST", "169.254.169.254")
address = "http://" + host + "/computeMetadata/v1/instance/service-accounts/default/token"
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
token = json.load(direct.open(request, timeout=10))["access_token"]
print('url = "%s"\nheader = "Authorization: Bearer %s"' % (sys.argv[1], token))
EOF
}
