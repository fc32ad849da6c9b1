
# presign prints the address of skyserve as a configuration of curl, signed with the credentials of this
# machine's role (AWS Signature Version 4). The credentials appear in no command line.
presign() {
	python3 - '@URL@' '@REGION@' <<'EOF'
import datetime, hashlib, hmac, json, os, sys, urllib.parse, urllib.request

address, region = sys.argv[1:]
metadata = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

def read(path, method="GET", **headers):
    request = urllib.request.Request(metadata + "/latest/" + path, method=method, headers={"X-aws-ec2-metadata-" + k: v for k, v in headers.items()})
    return direct.open(request, timeout=10).read().decode()

def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256)

def encode(text, safe=""):
    return urllib.parse.quote(text, safe=safe + "-._~")

session = {"token": read("api/token", "PUT", **{"token-ttl-seconds": "60"})}
roles = "meta-data/iam/security-credentials/"
role = json.loads(read(roles + read(roles, **session).strip(), **session))
now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
scope = [now[:8], region, "s3", "aws4_request"]
url = urllib.parse.urlsplit(address)
query = "&".join(k + "=" + encode(v) for k, v in sorted({
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": "/".join([role["AccessKeyId"]] + scope), "X-Amz-Date": now,
    "X-Amz-Expires": "900", "X-Amz-Security-Token": role["Token"], "X-Amz-SignedHeaders": "host",
}.items()))
request = "\n".join(["GET", encode(url.path, "/"), query, "host:" + url.netloc, "", "host", "UNSIGNED-PAYLOAD"])
key = ("AWS4" + role["SecretAccessKey"]).encode()
for part in scope:
    key = sign(key, part).digest()
text = "\n".join(["AWS4-HMAC-SHA256", now, "/".join(scope), hashlib.sha256(request.encode()).hexdigest()])
print('url = "%s?%s&X-Amz-Signature=%s"' % (address, query, sign(key, text).hexdigest()))
EOF
}
