"""SipHash-2-4 with 128 bits, in plain Python."""

from __future__ import annotations

MASK = 2**64 - 1
SECRET = bytes(range(16))


def reference(key: bytes, secret: bytes = SECRET) -> str:
    """SipHash-2-4-128 as its paper describes it."""

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> 64 - bits) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, c, d, left_shift, right in ((0, 1, 2, 3, 13, 16), (2, 1, 0, 3, 17, 21)):
                v[a], v[c] = (v[a] + v[b]) & MASK, (v[c] + v[d]) & MASK
                v[b], v[d] = rotate(v[b], left_shift) ^ v[a], rotate(v[d], right) ^ v[c]
                v[a] = rotate(v[a], 32)

    k = [int.from_bytes(secret[number : number + 8], "little") for number in (0, 8)]
    v = [int.from_bytes(b"somepseudorandomlygeneratedbytes"[number : number + 8], "big") for number in (0, 8, 16, 24)]
    v = [word ^ k[index % 2] for index, word in enumerate(v)]
    v[1] ^= 0xEE
    padded = key + bytes(7 - len(key) % 8) + bytes([len(key) % 256])
    for number in range(0, len(padded), 8):
        word = int.from_bytes(padded[number : number + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    result = b""
    for index, constant in ((2, 0xEE), (1, 0xDD)):
        v[index] ^= constant
        rounds(4)
        result += (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    return result.hex()
