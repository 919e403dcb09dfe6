"""An S3 server for tests: moto's, behind a gate that holds every request against AWS's own signer (botocore) and its
body against the hash that was signed, and that answers now and then that it is busy.

usage: s3_server.py PORT KEY_ID SECRET BUSY_EVERY

Makes the bucket "bucket". Each BUSY_EVERYth request is turned away with 503; 0: none.
"""
import hashlib
import io
import sys

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

port, key_id, secret, busy_every = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
inner = DomainDispatcherApplication(create_backend_app)
requests = 0


def signature_is_right(environ, body):
    authorization = environ.get("HTTP_AUTHORIZATION", "")
    if not authorization.startswith("AWS4-HMAC-SHA256 "):
        return False
    fields = dict(f.strip().split("=", 1) for f in authorization.split(" ", 1)[1].split(","))
    header = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    header["content-type"] = environ.get("CONTENT_TYPE", "")
    if header.get("x-amz-content-sha256") != hashlib.sha256(body).hexdigest():
        return False
    key, date, region, service, _ = fields["Credential"].split("/")
    if key != key_id or service != "s3":
        return False
    signed = {name: header[name] for name in fields["SignedHeaders"].split(";")}
    url = f"http://{header['host']}{environ['RAW_URI'] if 'RAW_URI' in environ else environ['REQUEST_URI']}"
    request = AWSRequest(method=environ["REQUEST_METHOD"], url=url, headers=signed)
    request.context["timestamp"] = header["x-amz-date"]
    signer = S3SigV4Auth(Credentials(key_id, secret), service, region)
    to_sign = signer.string_to_sign(request, signer.canonical_request(request))
    return signer.signature(to_sign, request) == fields["Signature"]


def application(environ, start_response):
    global requests
    requests += 1
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    refusal = None
    if busy_every and requests % busy_every == 0:
        refusal = "503 Slow Down", "SlowDown"
    elif not signature_is_right(environ, body):
        refusal = "403 Forbidden", "SignatureDoesNotMatch"
    if refusal:
        start_response(refusal[0], [("Content-Type", "application/xml")])
        return [f"<Error><Code>{refusal[1]}</Code><Message>as the test wants it</Message></Error>".encode()]
    return inner(environ, start_response)


s3_backends["123456789012"]["aws"].create_bucket("bucket", "us-east-1")
make_server("127.0.0.1", port, application, threaded=False).serve_forever()
